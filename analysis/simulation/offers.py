"""What is offered to a simulated engine: a plan, or the requests of a measured run once more.

Token ids only matter where requests share a prefix, so prompts that nobody kept are replaced by ids that nobody shares.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, cycle, pairwise
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
        answers: token ids of outputs, where they are known.
    """

    loop: Loop
    phases: Phases
    stops: Mapping[str, int] = field(default_factory=dict)
    transit_in: Mapping[str, float] = field(default_factory=dict)
    mean_transit_in_s: float = 0.0
    transit_out_s: float = 0.0
    first_out_s: float = 0.0
    answers: Mapping[str, list[int]] = field(default_factory=dict)


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


class SessionReplay(PlainLoop):
    """Sends the first turn of each session at its own moment, every other one some time after the answer before it.

    Args:
        starts: ``(sent_s, offer)`` of the first turns.
        then: by the id of a request the next one of its session: seconds from the answer until it is meant to be sent, until
            it is sent, and the request (as an offer without a time).
    """

    def __init__(self, starts: list[tuple[float, Offer]], then: Mapping[str, tuple[float, float, Offer]]) -> None:
        self._due = [(sent_s, number, offer) for number, (sent_s, offer) in enumerate(starts)]
        heapq.heapify(self._due)
        self._number = count(len(starts))
        self._then = then
        self._in_flight: set[str] = set()

    @property
    def exhausted(self) -> bool:
        return not self._due and not self._in_flight

    def next_due(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def take(self) -> Offer:
        offer = heapq.heappop(self._due)[2]
        self._in_flight.add(offer.request.request_id)
        return offer

    def on_end(self, request_id: str, now_s: float) -> None:
        self._in_flight.discard(request_id)
        if request_id in self._then:
            think_s, pause_s, offer = self._then[request_id]
            offer = offer._replace(intended_s=now_s + think_s)
            heapq.heappush(self._due, (now_s + pause_s, next(self._number), offer))


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

    So do sessions: a turn is sent as long after the simulated answer before it as it was after the measured one.

    Args:
        arrivals: ``measured`` sends and receives each request at the run's own stamps; ``intended`` sends it on time and
            lets it travel for the run's mean transit.

    Raises:
        ValueError: the run used its prefix cache and did not keep its prompts.
    """
    if arrivals not in ("measured", "intended"):
        raise ValueError(f"arrivals is {arrivals!r}; it must be 'measured' or 'intended'")
    rows, requests, stops = requests_of(run)
    answers = answers_of(rows, requests)
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
        return Offered(loop, phases, stops, {}, mean_in, out, first_out, answers)
    measured = arrivals == "measured"
    due = rows["sent_s" if measured else "intended_s"].tolist()
    intended = rows["intended_s"].tolist()
    labels = zip(rows["session_id"], rows["turn"], strict=True)
    sends = [
        (when, Offer(at, request, *_labels(*label)))
        for when, at, request, label in zip(due, intended, requests, labels, strict=True)
    ]
    known = dict(zip(rows["request_id"], transit_in, strict=True)) if measured else {}
    known = {name: seconds for name, seconds in known.items() if seconds == seconds}
    replay: Loop
    if rows["turn"].notna().any():
        replay = _session_replay(rows, sends)
    else:
        replay = ReplayLoop(sends if measured else sorted(sends, key=lambda send: send[0]))
    return Offered(replay, phases, stops, known, mean_in, out, first_out, answers)


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


def answers_of(rows: pd.DataFrame, requests: list[Request]) -> dict[str, list[int]]:
    """The outputs that can be read from the next turn of the same session, whose prompt begins with prompt and answer."""
    found = {}
    for before, after in _turns(rows):
        prompt, history = requests[before].prompt_token_ids, requests[after].prompt_token_ids
        end = len(prompt) + int(rows["output_tokens"].iloc[before])
        if history[: len(prompt)] == prompt and len(history) >= end:
            found[requests[before].request_id] = history[len(prompt) : end]
    return found


def _turns(rows: pd.DataFrame) -> list[tuple[int, int]]:
    """Positions of successive turns of a session."""
    turns = rows.reset_index(drop=True).dropna(subset=["turn"]).sort_values(["session_id", "turn"], kind="stable")
    sessions = turns["session_id"].tolist()
    pairs = zip(pairwise(turns.index.tolist()), pairwise(sessions), strict=True)
    return [positions for positions, (before, after) in pairs if before == after]


def _session_replay(rows: pd.DataFrame, sends: list[tuple[float, Offer]]) -> SessionReplay:
    ends = rows["finished_s"].tolist()
    then, later = {}, set()
    for before, after in _turns(rows):
        sent_s, offer = sends[after]
        think_s, pause_s = offer.intended_s - ends[before], sent_s - ends[before]
        then[sends[before][1].request.request_id] = (think_s, pause_s, offer)
        later.add(after)
    return SessionReplay([send for position, send in enumerate(sends) if position not in later], then)


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
