"""A small batch engine with two observers, written apart from the project's own simulator, as the truth of these tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.runs import Run


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
    changes: list[tuple[float, int, int, int]] = [
        (r, 1, 0, 0) for r, no in zip(received, refused, strict=True) if not no
    ]
    inbox = [i for i in np.argsort(received) if not refused[i]]
    waiting: list[int] = []
    running: list[int] = []
    again: set[int] = set()
    left = need.copy()
    scheduled, done = np.full(n, np.nan), np.full(n, np.nan)
    preemptions = np.zeros(n, dtype=int)
    t = 0.0
    while inbox or waiting or running:
        if not waiting and not running:
            t = max(t, received[inbox[0]])
        if stop_at is not None and t >= stop_at:
            break
        while inbox and received[inbox[0]] <= t:
            waiting.append(inbox.pop(0))
            changes.append((t, -1, 1, 0))
        if len(running) > 1 and rng.random() < preempt:
            victim = running.pop()
            waiting.insert(0, victim)
            preemptions[victim] += 1
            again.add(victim)
            changes.append((t, 0, 1, 0 if gauge_kind == "preempted twice" else -1))
        elif waiting and len(running) < seats:
            while waiting and len(running) < seats:
                i = waiting.pop(0)
                running.append(i)
                scheduled[i] = t if np.isnan(scheduled[i]) else scheduled[i]
                extra = gauge_kind == "preempted twice" and i in again
                again.discard(i)
                changes.append((t, 0, -1, 0 if extra else 1))
        t += step_s * rng.uniform(0.8, 1.2)
        for i in list(running):
            left[i] -= 1
            if left[i] == 0:
                running.remove(i)
                done[i] = t
                changes.append((t, 0, 0, -1))
    changes.sort(key=lambda row: row[0])
    table = np.array(changes)
    gauge = pd.DataFrame({"t_s": table[:, 0]})
    for k, name in enumerate(("inbox", "waiting", "running")):
        gauge[name] = np.cumsum(table[:, k + 1]).astype(int)
    if gauge_kind == "no inbox":
        gauge["inbox"] = 0
    finished = np.where(refused, received + 3e-4, done + rng.uniform(1e-4, 5e-4, n))
    horizon = np.inf if stop_at is None else stop_at
    finished = np.where(finished > horizon, np.nan, finished)
    answered = ~np.isnan(finished)
    reason = np.where(refused, "refused", "length").astype(object)
    reason[~answered] = None
    requests = pd.DataFrame(
        {
            "request_id": [f"r{i}" for i in range(n)],
            "phase": "measure",
            "intended_s": intended,
            "sent_s": np.where(sent > horizon, np.nan, sent),
            "received_s": np.where(answered & ~refused, received, np.nan),  # the client learns it with the answer
            "scheduled_s": np.where(answered, scheduled, np.nan),
            "done_s": np.where(answered, done, np.nan),
            "finished_s": finished,
            "lag": sent - intended,
            "cap_wait": 0.0,
            "output_tokens": need,
            "preemptions": preemptions,
            "finish_reason": reason,
        }
    )
    requests = requests[requests["intended_s"] < horizon].reset_index(drop=True)
    gauge = gauge[gauge["t_s"] < horizon].reset_index(drop=True)
    return Run.from_tables(requests, gauge=gauge)


@pytest.fixture(scope="session")
def batch_engine() -> Callable[..., Run]:
    """``batch_engine(seed=..., n=..., ...) -> Run``."""
    return _batch_engine
