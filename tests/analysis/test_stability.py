"""The backlog test on queues known to be stable or not: false alarms, power, and what it can't see."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.runs import Run
from analysis.stability import backlog_stability, backlog_test, residual_trend, squared_cv, stability

Array = NDArray[np.float64]


def queue(rng: np.random.Generator, runs: int, n: int, rho: float, cs2: float) -> tuple[Array, Array, Array]:
    """M/G/1 with gamma services of mean 1 (cs2 = 0: constant): arrivals, departures, services, (runs, n), from empty."""
    service = rng.gamma(1 / cs2, cs2, (runs, n)) if cs2 else np.ones((runs, n))
    arrivals = np.cumsum(rng.exponential(1 / rho, (runs, n)), axis=1)
    # departures by D_i = max over j <= i of (A_j + S_j + ... + S_i)
    work = np.cumsum(service, axis=1)
    departures = work + np.maximum.accumulate(arrivals - work + service, axis=1)
    return arrivals, departures, service


def verdicts(rho: float, cs2: float, n: int, runs: int = 400, warm: int = 0) -> dict[str, float]:
    arrivals, departures, service = queue(np.random.default_rng(9), runs, n + warm, rho, cs2)
    found = [
        backlog_stability(a, d, a[warm], a[-1], s).verdict
        for a, d, s in zip(arrivals, departures, service, strict=True)
    ]
    return {name: found.count(name) / runs for name in ("stable", "unstable", "undecided")}


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("cs2", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("rho", [0.8, 0.9])
def test_stable_queues_are_rarely_called_unstable(rho: float, cs2: float, n: int) -> None:
    share = verdicts(rho, cs2, n, warm=300)
    assert share["unstable"] <= 0.03
    assert share["stable"] >= 0.85


def test_an_overloaded_queue_is_called_unstable() -> None:
    assert verdicts(1.3, 1.0, 1000)["unstable"] > 0.98
    assert verdicts(1.3, 0.0, 400)["unstable"] > 0.95
    assert verdicts(1.3, 1.0, 400)["stable"] < 0.05


def test_what_a_short_run_could_not_have_seen_is_stated() -> None:
    result = backlog_test(0, 400, 1.0, 1.0)
    assert result.verdict == "stable"
    # n (1 - 1/r) = 2 sqrt(800)
    assert result.detectable_load == pytest.approx(1 / (1 - 2 * np.sqrt(800) / 400))
    assert backlog_test(5, 10, 1.0, 1.0).verdict.startswith("undecided: 10 arrivals")
    assert backlog_test(40, 400, 1.0, 1.0).verdict == "undecided"
    assert backlog_test(1, 1000, 0.0, 0.0).verdict == "undecided"
    assert backlog_test(3, 1000, 0.0, 0.0).verdict == "unstable"
    with pytest.raises(ValueError, match="must not be negative"):
        backlog_test(0, 1, -1.0, 0.0)


def test_a_run_is_judged_by_its_gauge(batch_engine: Callable[..., Run]) -> None:
    assert stability(batch_engine(seed=1, load=0.7, n=1000)).verdict == "stable"
    over = batch_engine(seed=1, load=1.6, n=1000)
    judged = stability(over)
    assert judged.verdict == "unstable"
    assert judged.growth > 100
    assert stability(Run.from_tables(over.requests)).verdict == "unstable"
    # the refused wait behind nothing; those that never finish are a backlog
    cut = batch_engine(seed=2, load=1.6, n=1000, stop_at=150.0)
    assert stability(cut, 0.0, 150.0).verdict == "unstable"


def test_squared_cv_of_known_samples() -> None:
    assert squared_cv([2.0, 4.0]) == pytest.approx(2 / 9)
    assert squared_cv([1.0]) == 0.0
    assert squared_cv(np.random.default_rng(0).exponential(size=200_000)) == pytest.approx(1.0, abs=0.03)


def test_a_trend_in_the_residuals_is_found_and_not_invented() -> None:
    rng = np.random.default_rng(4)
    t = np.linspace(0, 60, 3000)
    truth = 0.3
    held = alarms = 0
    for _ in range(300):
        noise = rng.normal(size=3000)
        noise = noise + 0.5 * np.roll(noise, 1)
        held += residual_trend(t, noise + truth * t / 60).contains(truth)
        alarms += not residual_trend(t, noise).contains(0.0)
    assert held >= 270
    assert alarms <= 30
    with pytest.raises(ValueError, match="at least 60"):
        residual_trend([1.0], [1.0])
