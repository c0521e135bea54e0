"""Multi-turn sessions, partly open: drawn beforehand except for what depends on the answers.

Starts, numbers of turns, new tokens, output lengths and think times come from the seeds; when a turn is due (end of the turn
before + think time) and its prompt (the whole history, token by token, and the new tokens) come from the run itself.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams
from engine.sequence import Request
from workload.arrivals import arrival_times
from workload.experiment import RunSpec
from workload.lengths import Lengths
from workload.loops import Offer
from workload.plan import run_lengths
from workload.processes.base import Times
from workload.processes.responsive import Sessions
from workload.prompts import OWN, TokenSource
from workload.seeds import streams


@dataclass(frozen=True)
class SessionPlan:
    """All sessions of a run. Turn ``k`` of session ``s`` is row ``first_turn[s] + k`` of the arrays over turns.

    Attributes:
        starts_s: start of each session, seconds, ascending.
        first_turn: (sessions + 1,) rows.
        new_tokens: tokens that each turn adds to the history.
        output_tokens: tokens of each answer.
        think_s: seconds between the answer before and this turn; 0 for a first turn.
    """

    starts_s: Times
    first_turn: NDArray[np.int64]
    new_tokens: Lengths
    output_tokens: Lengths
    think_s: Times

    def __len__(self) -> int:
        return len(self.starts_s)


def plan_sessions(run: RunSpec, rate: float | None = None) -> SessionPlan:
    """The sessions that start in warm-up, measurement and cooldown of ``run``.

    Args:
        rate: requests (turns) per second, where the run is given by its load.

    Raises:
        ValueError: the run is not one of sessions, has only a load and no rate is given, or is counted in requests.
    """
    arrivals = run.arrivals if rate is None else run.arrivals.at_rate(rate)
    if not isinstance(arrivals, Sessions):
        raise ValueError(f"{run.run_dir}: arrivals of process {arrivals.process!r} are no sessions")
    if run.warmup.seconds is None or run.measure.seconds is None:
        raise ValueError(
            f"{run.run_dir}: sessions need warmup and measure in seconds: when a turn comes depends on the answers"
        )
    duration = run.warmup.seconds + run.measure.seconds + run.cooldown.seconds
    starts = arrival_times(
        {"process": "poisson", "rate": arrivals.session_rate}, duration=duration, seed=run.seeds.arrivals
    )
    turns_rng, think_rng = streams(run.seeds.clients, "clients", 2)
    first = np.concatenate([[0], np.cumsum(arrivals.turns.draw(len(starts), turns_rng))]).astype(np.int64)
    total = int(first[-1])
    new, output = run_lengths(run, total)
    think = arrivals.think.draw(total, think_rng)
    think[first[:-1]] = 0.0
    return SessionPlan(starts, first, new, output, think)


@dataclass
class _Session:
    number: int
    turn: int = 0
    history: list[int] = field(default_factory=list)


class SessionLoop:
    """A loop (``loops.Loop``) of sessions. Needs the answers' tokens: :meth:`on_tokens`.

    A turn that would not fit into ``max_model_len`` with its answer is not sent; it and the turns after it are counted in
    ``overflowed_turns`` and the session ends.

    Args:
        plan: the sessions.
        source: of the new tokens of each turn.
        max_model_len: tokens of prompt and answer together.
        seed: of the sampling streams.
        natural: let the model end its answers.
    """

    def __init__(
        self, plan: SessionPlan, source: TokenSource, *, max_model_len: int, seed: int = 0, natural: bool = False
    ) -> None:
        self._plan = plan
        self._source = source
        self._max_model_len = max_model_len
        self._seed = seed
        self._natural = natural
        self._due: list[tuple[float, int]] = []  # (when, session) of the next turns of running sessions
        self._waiting: dict[int, _Session] = {}
        self._in_flight: dict[str, _Session] = {}
        self._next_session = 0
        self.overflowed_turns = 0
        self.overflowed_sessions = 0

    @property
    def exhausted(self) -> bool:
        return math.isinf(self.next_due()) and not self._in_flight

    def next_due(self) -> float:
        """When the next turn is meant to be sent; inf while that depends on an answer."""
        self._drop_overflowing_starts()
        start = self._plan.starts_s[self._next_session] if self._next_session < len(self._plan) else math.inf
        return min(float(start), self._due[0][0] if self._due else math.inf)

    def take(self) -> Offer:
        due = self.next_due()
        if self._due and self._due[0][0] <= due:
            session = self._waiting.pop(heapq.heappop(self._due)[1])
        else:
            session = _Session(self._next_session)
            self._next_session += 1
        row = self._row(session)
        session.history.extend(self._source.tokens(OWN, row, int(self._plan.new_tokens[row])).tolist())
        request = self._request(session, row)
        self._in_flight[request.request_id] = session
        return Offer(due, request, session_id=f"session-{session.number}", turn=session.turn)

    def on_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tokens of an answer, in order: they become part of the history."""
        self._in_flight[request_id].history.extend(token_ids)

    def on_end(self, request_id: str, now_s: float) -> None:
        session = self._in_flight.pop(request_id)
        session.turn += 1
        row = self._row(session)
        if row == self._plan.first_turn[session.number + 1]:
            return
        if not self._fits(session, row):
            self._count_overflow(session, row)
            return
        self._waiting[session.number] = session
        heapq.heappush(self._due, (now_s + float(self._plan.think_s[row]), session.number))

    def facts(self) -> dict[str, int]:
        """Turns and sessions cut off because the history had outgrown the model."""
        return {"overflowed_turns": self.overflowed_turns, "overflowed_sessions": self.overflowed_sessions}

    def _row(self, session: _Session) -> int:
        return int(self._plan.first_turn[session.number]) + session.turn

    def _fits(self, session: _Session, row: int) -> bool:
        needed = len(session.history) + int(self._plan.new_tokens[row]) + int(self._plan.output_tokens[row])
        return needed <= self._max_model_len

    def _count_overflow(self, session: _Session, row: int) -> None:
        self.overflowed_sessions += 1
        self.overflowed_turns += int(self._plan.first_turn[session.number + 1]) - row

    def _drop_overflowing_starts(self) -> None:
        """Sessions whose very first turn does not fit never begin."""
        while self._next_session < len(self._plan):
            session = _Session(self._next_session)
            if self._fits(session, self._row(session)):
                return
            self._count_overflow(session, self._row(session))
            self._next_session += 1

    def _request(self, session: _Session, row: int) -> Request:
        params = SamplingParams(
            temperature=1.0 if self._natural else 0.0,
            seed=self._seed + row,
            max_tokens=int(self._plan.output_tokens[row]),
            ignore_eos=not self._natural,
        )
        return Request(f"{session.number}.{session.turn}", list(session.history), params)
