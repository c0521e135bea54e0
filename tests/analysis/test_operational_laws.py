"""Operational laws on small queues of known behaviour."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from analysis.intervals import TooShort
from analysis.operational_laws import interactive_law, pasta, utilisation_law
from analysis.runs import Run

Array = NDArray[np.float64]


def one_seat(arrivals: Array, service: Array) -> Run:
    """A first-come-first-served queue with one seat, its gauge and its stamps."""
    began, done, free = np.empty_like(arrivals), np.empty_like(arrivals), 0.0
    for i in range(arrivals.size):
        began[i] = max(free, arrivals[i])
        done[i] = free = began[i] + service[i]
    changes = np.concatenate(
        [
            np.column_stack([arrivals, np.ones(arrivals.size), np.zeros(arrivals.size)]),
            np.column_stack([done, np.zeros(arrivals.size), -np.ones(arrivals.size)]),
            np.column_stack([began, -np.ones(arrivals.size), np.ones(arrivals.size)]),
        ]
    )
    changes = changes[np.argsort(changes[:, 0], kind="stable")]
    levels = np.cumsum(changes[:, 1:], axis=0).astype(int)
    gauge = pd.DataFrame({"t_s": changes[:, 0], "inbox": 0, "waiting": levels[:, 0], "running": levels[:, 1]})
    requests = pd.DataFrame(
        {
            "request_id": np.arange(arrivals.size).astype(str),
            "intended_s": arrivals,
            "sent_s": arrivals,
            "received_s": arrivals,
            "scheduled_s": began,
            "done_s": done,
            "finished_s": done,
            "finish_reason": "length",
        }
    )
    return Run.from_tables(requests, gauge=gauge)


def test_utilisation_law_holds_with_both_edges() -> None:
    rng = np.random.default_rng(0)
    run = one_seat(np.cumsum(rng.exponential(1.0, 2000)), rng.exponential(0.7, 2000))
    law = utilisation_law(run, 100.0, 1500.0)
    assert law.difference == pytest.approx(0.0, abs=1e-12)
    assert law.busy == pytest.approx(law.lam * law.ES)
    assert law.busy == pytest.approx(0.7, abs=0.1)


def test_utilisation_law_shows_a_gauge_that_leaves_out_part_of_the_service() -> None:
    rng = np.random.default_rng(0)
    run = one_seat(np.cumsum(rng.exponential(1.0, 500)), np.full(500, 0.7))
    shorter = run.requests.assign(done_s=run.requests["done_s"] - 0.1, finished_s=run.requests["finished_s"] - 0.1)
    law = utilisation_law(Run.from_tables(shorter, gauge=run.gauge))
    assert law.difference == pytest.approx(0.1, abs=0.02)


def test_utilisation_law_is_for_one_seat(batch_engine: Callable[..., Run]) -> None:
    with pytest.raises(ValueError, match="one seat"):
        utilisation_law(batch_engine(n=100))
    with pytest.raises(ValueError, match="no gauge"):
        utilisation_law(Run.from_tables(batch_engine(n=100).requests))


def test_poisson_arrivals_see_time_averages_and_bursts_do_not() -> None:
    rng = np.random.default_rng(1)
    n, agreed = 5000, 0
    for _ in range(40):
        run = one_seat(np.cumsum(rng.exponential(1.0, n)), rng.exponential(0.5, n))
        agreed += pasta(run).verdict == "agrees"
    assert agreed >= 33  # 95 % each
    bursts = np.cumsum(np.where(np.arange(n) % 5 == 0, rng.exponential(4.8, n), 0.05))
    seen = pasta(one_seat(bursts, rng.exponential(0.5, n)))
    assert seen.verdict == "differs"
    assert seen.seen > 1.5 * seen.time_average
    regular = pasta(one_seat(np.arange(n) * 1.0, np.full(n, 0.5)))
    assert regular.verdict == "differs"
    assert (regular.seen, regular.time_average) == pytest.approx((0.0, 0.5), abs=1e-3)
    short = pasta(one_seat(np.arange(50) * 1.0, np.full(50, 0.5)))
    assert short.verdict.startswith("too short")
    assert isinstance(short.difference, TooShort)


def test_a_closed_loop_balances() -> None:
    rng = np.random.default_rng(2)
    users, rows, free = 6, [], 0.0
    ready = [(float(rng.exponential(2.0)), u) for u in range(users)]
    for _ in range(4000):
        ready.sort()
        t, user = ready.pop(0)
        free = max(free, t) + float(rng.exponential(0.5))
        rows.append((f"{len(rows)}", f"u{user}", t, free))
        ready.append((free + float(rng.exponential(2.0)), user))
    table = pd.DataFrame(rows, columns=["request_id", "session_id", "intended_s", "finished_s"])
    law = interactive_law(Run.from_tables(table), users)
    assert abs(law.relative_difference) < 0.02
    assert law.predicted_N == pytest.approx(law.X * (law.R + law.Z))
    assert abs(interactive_law(Run.from_tables(table[table["session_id"] != "u0"]), users).relative_difference) > 0.1
    with pytest.raises(ValueError, match="no session_id"):
        interactive_law(Run.from_tables(table.drop(columns="session_id")), users)
    with pytest.raises(ValueError, match="at least 1"):
        interactive_law(Run.from_tables(table), 0)
