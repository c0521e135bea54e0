"""What is offered to a simulated engine: a plan, or the requests of a measured run once more.

Token ids only matter where requests share a prefix, so prompts that nobody kept are replaced by ids that nobody shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.runs import Run
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from workload.loops import ClosedLoop, Loop, Offer, PlainLoop
from workload.phases import Phases
from workload.plan import RequestPlan

FIRST_PROMPT_ID = 1 << 40  # above every vocabulary and every placeholder of an output
Arrivals = Literal["measured", "intended"]


@dataclass(frozen=True)
class Offered:
    """A source of requests with what a client and a network add to it.

    Attributes:
        loop: gives the requests.
        phases: tells warm-up, measurement and cool-down apart.
        stops: output number at which a request ends by itself, for those that end before ``max_tokens``.
        transit_in: seconds from sent to received of each request; ``mean_transit_in_s`` where it is not listed.
        transit_out_s: from the engine's stamp to the client's; ``first_out_s`` more of it for a request's first token, for
            which a client may have to wake up.
    """

    loop: Loop
    phases: Phases
    stops: Mapping[str, int] = field(default_factory=dict)
    transit_in: Mapping[str, float] = field(default_factory=dict)
    mean_transit_in_s: float = 0.0
    transit_out_s: float = 0.0
    first_out_s: float = 0.0


class ReplayLoop(PlainLoop):
    """Sends each request at its own moment, whatever becomes of the others.

    Args:
        sends: ``(sent_s, offer)`` in order of ``sent_s``.
    """

    def __init__(self, sends: list[tuple[float, Offer]]) -> None:
        self._sends = sends
        self._next = 0

    @property
    def exhausted(self) -> bool:
        return self._next == len(self._sends)

    def next_due(self) -> float:
        return math.inf if self.exhausted else self._sends[self._next][0]

    def take(self) -> Offer:
        self._next += 1
        return self._sends[self._next - 1][1]

    def on_end(self, request_id: str, now_s: float) -> None:
        """Nobody waits for an answer."""


class FixedRequests:
    """Given requests number 0, 1, 2, ...; past the end they begin anew under other ids."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        turn, at = divmod(index, len(self._requests))
        request = self._requests[at]
        if not turn:
            return request
        return Request(
            f"{request.request_id}+{turn}",
            request.prompt_token_ids,
            request.params,
            request.priority,
            request.predicted_output_tokens,
            request.cache_salt,
        )


class UnsharedPrompts:
    """Prompts of a given length whose token ids occur nowhere else."""

    def __init__(self) -> None:
        self._next = FIRST_PROMPT_ID

    def take(self, length: int) -> list[int]:
        first, self._next = self._next, self._next + length
        return list(range(first, self._next))


def offer_plan(plan: RequestPlan) -> Offered:
    """The requests of a plan, each sent when it is due."""
    prompts = UnsharedPrompts()
    sends = []
    columns = (plan.intended_s, plan.prompt_tokens, plan.output_tokens, plan.predicted_output_tokens)
    for index, (due, prompt, output, predicted) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        request = _request(str(index), prompts.take(prompt), output, predicted)
        sends.append((due, Offer(due, request)))
    return Offered(ReplayLoop(sends), Phases(plan.measure_start_s, plan.measure_end_s))


def offer_again(run: Run, arrivals: Arrivals = "measured") -> Offered:
    """The requests of ``run`` once more; a closed loop stays one, with the clients, the order and the think times it had.

    The turns of sessions are sent when they were sent, not when the simulated answer before them ends.

    Args:
        arrivals: ``measured`` sends and receives each request at the run's own stamps; ``intended`` sends it on time and
            lets it travel for the run's mean transit.

    Raises:
        ValueError: the run used its prefix cache and did not keep its prompts.
    """
    if arrivals not in ("measured", "intended"):
        raise ValueError(f"arrivals is {arrivals!r}; it must be 'measured' or 'intended'")
    rows, requests, stops = requests_of(run)
    transit_in = rows["received_s"] - rows["sent_s"]
    mean_in = float(np.nan_to_num(transit_in.mean()))
    out = float(np.nan_to_num((rows["finished_s"] - rows["done_s"]).mean()))
    first_out = max(0.0, float(np.nan_to_num((rows["first_token_s"] - rows["emitted_first_s"]).mean())) - out)
    phases = Phases(*run.window)
    sessions = rows["session_id"].dropna().astype(str)
    if len(sessions) and sessions.str.startswith("client-").all():
        again = FixedRequests(requests)
        clients = sessions.nunique()
        last_start_s = float(rows.groupby("session_id")["intended_s"].min().max())  # the starts are spread evenly
        stagger_s = last_start_s * clients / (clients - 1) if clients > 1 else 0.0
        loop = ClosedLoop(clients, again, think=_think_times(rows), stagger_s=stagger_s)
        return Offered(loop, phases, stops, {}, mean_in, out, first_out)
    measured = arrivals == "measured"
    due = rows["sent_s" if measured else "intended_s"].tolist()
    intended = rows["intended_s"].tolist()
    labels = zip(rows["session_id"], rows["turn"], strict=True)
    sends = [
        (when, Offer(at, request, *_labels(*label)))
        for when, at, request, label in zip(due, intended, requests, labels, strict=True)
    ]
    if not measured:
        sends.sort(key=lambda send: send[0])
    known = dict(zip(rows["request_id"], transit_in, strict=True)) if measured else {}
    known = {name: seconds for name, seconds in known.items() if seconds == seconds}
    return Offered(ReplayLoop(sends), phases, stops, known, mean_in, out, first_out)


def requests_of(run: Run) -> tuple[pd.DataFrame, list[Request], dict[str, int]]:
    """The rows of the requests that ``run`` sent in order of sending, the requests, and where outputs ended by themselves.

    Raises:
        ValueError: the run used its prefix cache and did not keep its prompts.
    """
    rows = run.requests[run.requests["sent_s"].notna()]
    number = pd.to_numeric(rows["request_id"].str.extract(r"(\d+)$")[0])  # of issue, for those sent at one moment
    rows = rows.assign(number=number).sort_values(["sent_s", "number"], kind="stable").drop(columns="number")
    prompts = _prompts(run, rows)
    ended = rows["finish_reason"] == "stop"
    stops = dict(zip(rows["request_id"][ended], rows["output_tokens"][ended].astype(int), strict=True))
    return rows, [_request_of(row, prompts[str(row.request_id)]) for row in rows.itertuples()], stops


def _request(name: str, prompt: list[int], output: int, predicted: int | None, priority: int = 0) -> Request:
    return Request(name, prompt, SamplingParams(0.0, max_tokens=output), priority, predicted)


def _request_of(row: Any, prompt: list[int]) -> Request:
    predicted = row.predicted_output_tokens
    return _request(
        row.request_id,
        prompt,
        int(row.max_tokens),
        None if pd.isna(predicted) else int(predicted),
        0 if pd.isna(row.priority) else int(row.priority),
    )


def _labels(session: Any, turn: Any) -> tuple[str | None, int | None]:
    return (None if pd.isna(session) else str(session), None if pd.isna(turn) else int(turn))


def _prompts(run: Run, rows: pd.DataFrame) -> dict[str, list[int]]:
    kept: dict[str, list[int]] = {}
    if run.recorded("prompts"):
        prompts = zip(run.prompts["request_id"], run.prompts["token_ids"], strict=True)
        kept = {str(name): [int(token) for token in ids] for name, ids in prompts}
    lost = rows[~rows["request_id"].isin(list(kept))]
    reused = int((lost["cached_tokens"].fillna(0) > 0).sum())
    if reused:
        raise ValueError(
            f"{reused} requests of the run found part of their prompt in the prefix cache, but their prompts were not "
            "recorded; record them to replay this run"
        )
    unshared = UnsharedPrompts()
    lengths = lost["prompt_tokens"].astype(int)
    return kept | {str(name): unshared.take(int(n)) for name, n in zip(lost["request_id"], lengths, strict=True)}


def _think_times(rows: pd.DataFrame) -> Callable[[int], float] | None:
    """The pauses from the end of a client's request to its next, in order of those ends, for ever; None without any."""
    ordered = rows.sort_values(["session_id", "intended_s"], kind="stable")
    ends = ordered.groupby("session_id")["finished_s"].shift()
    pauses = (ordered["intended_s"] - ends).loc[ends.dropna().sort_values().index].to_numpy(dtype=float)
    if not np.any(pauses > 1e-9):
        return None
    endless = cycle(np.maximum(pauses, 0.0).tolist())
    return lambda client: next(endless)
