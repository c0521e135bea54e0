"""A small batch engine with two observers, written apart from the project's own simulator, as the truth of these tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from analysis.runs import Run


@dataclass
class _Engine:
    """State of the batch engine: who is where, what is left of each request, and every change of the gauge."""

    received: np.ndarray
    left: np.ndarray
    inbox: list[int]
    counted_twice: bool  # a preempted request counted in running as well until it runs again
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    changes: list[tuple[float, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.left.size
        self.scheduled, self.done = np.full(n, np.nan), np.full(n, np.nan)
        self.preemptions = np.zeros(n, dtype=int)
        self.changes = [(self.received[i], 1, 0, 0) for i in self.inbox]

    @property
    def busy(self) -> bool:
        return bool(self.inbox or self.waiting or self.running)

    def drain(self, t: float) -> None:
        while self.inbox and self.received[self.inbox[0]] <= t:
            self.waiting.append(self.inbox.pop(0))
            self.changes.append((t, -1, 1, 0))

    def preempt(self, t: float) -> None:
        victim = self.running.pop()
        self.waiting.insert(0, victim)
        self.preemptions[victim] += 1
        self.again.add(victim)
        self.changes.append((t, 0, 1, 0 if self.counted_twice else -1))

    def admit(self, t: float, seats: int) -> None:
        while self.waiting and len(self.running) < seats:
            i = self.waiting.pop(0)
            self.running.append(i)
            self.scheduled[i] = t if np.isnan(self.scheduled[i]) else self.scheduled[i]
            extra = self.counted_twice and i in self.again
            self.again.discard(i)
            self.changes.append((t, 0, -1, 0 if extra else 1))

    def step(self, t: float) -> None:
        for i in list(self.running):
            self.left[i] -= 1
            if self.left[i] == 0:
                self.running.remove(i)
                self.done[i] = t
                self.changes.append((t, 0, 0, -1))

    def gauge(self) -> pd.DataFrame:
        table = np.array(sorted(self.changes, key=lambda row: row[0]))
        return pd.DataFrame(
            {"t_s": table[:, 0]}
            | {name: np.cumsum(table[:, k + 1]).astype(int) for k, name in enumerate(("inbox", "waiting", "running"))}
        )


def _batch_engine(
    seed: int = 0,
    n: int = 600,
    load: float = 0.7,
    seats: int = 4,
    step_s: float = 0.05,
    stop_at: float | None = None,
    preempt: float = 0.02,
    refuse: float = 0.0,
    gauge_kind: str = "right",
) -> Run:
    """Poisson arrivals into a queue served by steps of ``step_s``: whatever came during a step waits in the inbox until
    the next. One step gives each running request one token. Requests need 1 to 39 tokens. ``gauge_kind``: "right", "no
    inbox", or "preempted twice" (a preempted request counted in running as well until it runs again)."""
    rng = np.random.default_rng(seed)
    rate = load * seats / (20 * step_s)
    intended = np.cumsum(rng.exponential(1 / rate, n))
    sent = intended + rng.exponential(2e-4, n)
    received = sent + rng.uniform(1e-4, 5e-4, n)
    need = rng.integers(1, 40, n)
    refused = rng.random(n) < refuse
    inbox = [int(i) for i in np.argsort(received) if not refused[i]]
    engine = _Engine(received, need.copy(), inbox, gauge_kind == "preempted twice")
    t = 0.0
    while engine.busy:
        if not engine.waiting and not engine.running:
            t = max(t, received[engine.inbox[0]])
        if stop_at is not None and t >= stop_at:
            break
        engine.drain(t)
        if len(engine.running) > 1 and rng.random() < preempt:
            engine.preempt(t)
        else:
            engine.admit(t, seats)
        t += step_s * rng.uniform(0.8, 1.2)
        engine.step(t)
    gauge = engine.gauge()
    if gauge_kind == "no inbox":
        gauge["inbox"] = 0
    finished = np.where(refused, received + 3e-4, engine.done + rng.uniform(1e-4, 5e-4, n))
    horizon = np.inf if stop_at is None else stop_at
    requests = _client_rows(
        engine, intended, sent, need, refused, np.where(finished > horizon, np.nan, finished), horizon
    )
    gauge = gauge[gauge["t_s"] < horizon].reset_index(drop=True)
    return Run.from_tables(requests, gauge=gauge)


def _client_rows(
    engine: _Engine,
    intended: np.ndarray,
    sent: np.ndarray,
    need: np.ndarray,
    refused: np.ndarray,
    finished: np.ndarray,
    horizon: float,
) -> pd.DataFrame:
    """What the client knows at ``horizon``: the engine's stamps of a request come with its answer."""
    answered = ~np.isnan(finished)
    reason = np.where(refused, "refused", "length").astype(object)
    reason[~answered] = None
    rows = pd.DataFrame(
        {
            "request_id": [f"r{i}" for i in range(intended.size)],
            "phase": "measure",
            "intended_s": intended,
            "sent_s": np.where(sent > horizon, np.nan, sent),
            "received_s": np.where(answered & ~refused, engine.received, np.nan),
            "scheduled_s": np.where(answered, engine.scheduled, np.nan),
            "done_s": np.where(answered, engine.done, np.nan),
            "finished_s": finished,
            "lag": sent - intended,
            "cap_wait": 0.0,
            "output_tokens": need,
            "preemptions": engine.preemptions,
            "finish_reason": reason,
        }
    )
    return rows[rows["intended_s"] < horizon].reset_index(drop=True)


@pytest.fixture(scope="session")
def batch_engine() -> Callable[..., Run]:
    """``batch_engine(seed=..., n=..., ...) -> Run``."""
    return _batch_engine
