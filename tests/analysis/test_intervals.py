"""Intervals cover what they claim, or refuse. Oracles: exact means and variances of AR(1) and M/M/1, scipy, hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from analysis.intervals import (
    Estimate,
    TooShort,
    autocorrelation,
    batch_means,
    correlation_time,
    effective_sample_size,
    regenerative,
    replications,
    samples_for_quantile,
    smallest_detectable,
    stationary_bootstrap,
)

Array = NDArray[np.float64]


def ar1(rng: np.random.Generator, runs: int, n: int, phi: float = 0.9) -> Array:
    """Stationary AR(1) with mean 0, one run a row."""
    noise = rng.normal(size=(n, runs))
    x = rng.normal(size=runs) / np.sqrt(1 - phi**2)
    out = np.empty((runs, n))
    for i in range(n):
        x = phi * x + noise[i]
        out[:, i] = x
    return out


def mm1_waits(rng: np.random.Generator, runs: int, n: int, rho: float) -> Array:
    """Waits of the stationary M/M/1 queue with mean service 1, by Lindley's recursion; their mean is rho / (1 - rho)."""
    service = rng.exponential(1.0, (n, runs))
    gap = rng.exponential(1 / rho, (n, runs))
    wait = np.where(rng.random(runs) < rho, rng.exponential(1 / (1 - rho), runs), 0.0)
    out = np.empty((runs, n))
    for i in range(n):
        out[:, i] = wait
        wait = np.maximum(wait + service[i] - gap[i], 0.0)
    return out


def coverage(method: Callable[[Array], Estimate], runs: Array, truth: float) -> tuple[int, int]:
    """How many runs were given an interval, and in how many of those it held the truth."""
    given = held = 0
    for run in runs:
        try:
            interval = method(run)
        except TooShort:
            continue
        given += 1
        held += interval.contains(truth)
    return given, held


def at_least(held: int, given: int, nominal: float) -> bool:
    """Whether ``held`` of ``given`` is compatible with a coverage of at least ``nominal`` (binomial, 1 in 1,000)."""
    return bool(stats.binom.cdf(held, given, nominal) > 1e-3)


@pytest.mark.parametrize(
    ("name", "n", "runs"), [("ar1", 4000, 300), ("mm1 0.5", 2000, 300), ("mm1 0.8", 16000, 120), ("iid", 200, 300)]
)
def test_batch_means_cover_the_true_mean_where_they_are_given(name: str, n: int, runs: int) -> None:
    rng = np.random.default_rng(11)
    if name == "ar1":
        data, truth = ar1(rng, runs, n), 0.0
    elif name == "iid":
        data, truth = rng.exponential(size=(runs, n)), 1.0
    else:
        rho = float(name.split()[1])
        data, truth = mm1_waits(rng, runs, n, rho), rho / (1 - rho)
    given, held = coverage(batch_means, data, truth)
    assert given > 0.9 * runs
    assert at_least(held, given, 0.93)


@pytest.mark.parametrize(("rho", "n"), [(0.8, 300), (0.8, 1000), (0.5, 300), (0.9, 3000)])
def test_batch_means_refuse_short_runs_of_a_loaded_queue(rho: float, n: int) -> None:
    data = mm1_waits(np.random.default_rng(5), 200, n, rho)
    given, _ = coverage(batch_means, data, rho / (1 - rho))
    assert given <= 10
    needed = [refusal.needed for refusal in map(_refusal, data) if refusal is not None]
    assert all(least is not None and least > n for least in needed)


def _refusal(run: Array) -> TooShort | None:
    try:
        batch_means(run)
    except TooShort as refusal:
        return refusal
    return None


def test_an_interval_that_ignores_correlation_would_be_many_times_too_narrow() -> None:
    waits = mm1_waits(np.random.default_rng(2), 1, 200_000, 0.8)[0]
    naive = 1.96 * waits.std() / np.sqrt(waits.size)
    # Whitt 1989: asymptotic variance of the wait at rho = .8 is 1976, its variance 24: a factor of sqrt(82) = 9.07.
    assert 7 < batch_means(waits).half_width / naive < 14


def test_correlation_time_of_ar1_is_known() -> None:
    times = [correlation_time(run) for run in ar1(np.random.default_rng(3), 20, 40_000)]
    assert np.mean(times) == pytest.approx(1.9 / 0.1, rel=0.05)  # (1 + phi) / (1 - phi)
    assert correlation_time(np.random.default_rng(4).normal(size=5000)) < 1.2
    assert effective_sample_size(np.ones(50)) == 50


def test_autocorrelation_agrees_with_the_direct_sum() -> None:
    x = np.random.default_rng(0).normal(size=57).cumsum()
    d = x - x.mean()
    direct = [np.sum(d[: x.size - k] * d[k:]) / np.sum(d * d) for k in range(57)]
    np.testing.assert_allclose(autocorrelation(x), direct, atol=1e-12)
    assert autocorrelation(np.full(9, 0.1)).tolist() == [1.0] + [0.0] * 8


def test_replications_agree_with_scipy_and_a_prediction_is_wider() -> None:
    x = np.array([3.1, 2.7, 3.9, 3.3, 3.0])
    interval = replications(x)
    low, high = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert interval.kind == "confidence"
    prediction = replications(x, kind="prediction")
    assert prediction.kind == "prediction"
    assert prediction.half_width == pytest.approx(interval.half_width * np.sqrt(6))
    with pytest.raises(TooShort):
        replications([1.0])


def test_regenerative_cycles_cover_the_mean_wait() -> None:
    runs = mm1_waits(np.random.default_rng(8), 200, 8000, 0.5)
    given, held = coverage(lambda w: regenerative(w, np.flatnonzero(w == 0)), runs, 1.0)
    assert given == 200
    assert at_least(held, given, 0.93)


def test_regenerative_ratio_is_the_mean_over_complete_cycles() -> None:
    x = np.arange(30_000.0)
    starts = np.arange(3, 30_000, 7)
    interval = regenerative(x, starts)
    assert interval.mean == pytest.approx(x[3 : starts[-1]].mean())
    assert interval.n == starts[-1] - 3
    with pytest.raises(TooShort):
        regenerative(x, [0, 500])
    with pytest.raises(ValueError, match="must be indices"):
        regenerative(x, [0, 30_000])


def test_bootstrap_covers_and_repeats_with_its_seed() -> None:
    data = ar1(np.random.default_rng(6), 60, 3000, 0.5)
    given, held = coverage(lambda run: stationary_bootstrap(run, resamples=200), data, 0.0)
    assert given == 60
    assert at_least(held, given, 0.92)
    assert stationary_bootstrap(data[0], seed=3) == stationary_bootstrap(data[0], seed=3)
    assert stationary_bootstrap(data[0], statistic=lambda v: float(np.median(v))).mean == np.median(data[0])


def test_smallest_detectable_deviation_is_detected_with_its_power() -> None:
    rng = np.random.default_rng(1)
    estimate = Estimate(0.0, 1.96, 1, 1.0, 0.95, "known variance")
    shift = smallest_detectable(estimate, power=0.9)
    found = np.mean(np.abs(rng.normal(shift, 1.0, 20_000)) > 1.96)
    assert found == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 20_000))


def test_planned_sample_size_gives_the_planned_precision() -> None:
    n = samples_for_quantile(0.9, 0.1)
    rng = np.random.default_rng(7)
    estimates = np.quantile(rng.exponential(size=(3000, n)), 0.9, axis=1)
    truth = -np.log(0.1)
    within = np.mean(np.abs(estimates / truth - 1) <= 0.1)
    assert within == pytest.approx(0.95, abs=0.02)
    assert samples_for_quantile(0.99, 0.2) == 1000  # 448 for the width; 10 / (1 - q) rules
    assert samples_for_quantile(0.9, 0.1, correlation=20) == pytest.approx(20 * n, rel=0.01)
    pilot = rng.exponential(3.0, size=200_000)
    assert samples_for_quantile(0.9, 0.1, pilot=pilot) == pytest.approx(n, rel=0.15)
    with pytest.raises(TooShort):
        samples_for_quantile(0.99, 0.1, pilot=pilot[:100])
    with pytest.raises(ValueError, match="q must lie"):
        samples_for_quantile(1.0, 0.1)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="2 of 3 observations are nan or infinite"):
        batch_means([1.0, np.nan, np.inf])
    with pytest.raises(ValueError, match="shape"):
        batch_means(np.ones((2, 2)))
    with pytest.raises(TooShort):
        batch_means([])
    with pytest.raises(ValueError, match="confidence"):
        replications([1.0, 2.0], confidence=95)
