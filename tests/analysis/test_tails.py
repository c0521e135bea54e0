"""Quantiles, their intervals and refusals, against numpy, exact binomials and known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from analysis.intervals import TooShort
from analysis.tails import (
    TooFewSamples,
    ccdf,
    decay_rate,
    fan_out,
    fan_out_adjacent,
    mean_excess,
    quantile,
    quantile_interval,
    serial,
)

Array = NDArray[np.float64]
finite = st.floats(-1e9, 1e9)


@settings(max_examples=150, deadline=None)
@given(st.lists(finite, min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_numpys_inverted_cdf(x: list[float], q: float) -> None:
    value = quantile(x, q)
    assert value in x
    below = np.mean(np.array(x) <= value)
    assert below >= q
    # the smallest such: whatever lies below it does not reach q
    assert np.mean(np.array(x) < value) < q or value == min(x)


def test_rounding_of_q_times_n_takes_no_further_step() -> None:
    x = np.arange(1.0, 101)
    for k in range(1, 101):
        assert quantile(x, k / 100) == k
    assert quantile([3.0, 1.0, 2.0], 0) == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_quantiles_are_monotone_and_within_range_also_with_two_clusters(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(n) < 0.5, rng.normal(1e-3, 1e-6, n), rng.normal(1e3, 1e-3, n))
    values = [quantile(x, q) for q in np.linspace(0, 1, 41)]
    assert values == sorted(values)
    assert min(x) == values[0] <= values[-1] == max(x)


def test_requests_that_never_ended_count_as_infinite() -> None:
    x = [1.0, 2.0, 3.0, np.nan, np.inf]
    assert quantile(x, 0.6) == 3.0
    assert quantile(x, 0.61) == np.inf
    assert quantile(x, 0.99, nan="drop") == np.inf
    assert quantile([1.0, np.nan], 0.99, nan="drop") == 1.0
    with pytest.raises(ValueError, match="1 of 5 observations are nan"):
        quantile(x, 0.5, nan="raise")
    with pytest.raises(TooFewSamples):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="q must lie"):
        quantile(x, 99)


def test_one_percent_of_slow_requests_cut_off_at_the_end_do_not_make_the_tail_look_good() -> None:
    latency = np.full(2000, 0.1)
    latency[::80] = np.nan
    assert quantile(latency, 0.99) == np.inf
    assert quantile_interval(latency, 0.985).high == np.inf
    assert quantile_interval(latency, 0.5).high == 0.1


def test_percentiles_of_two_workers_are_not_the_average_of_their_percentiles() -> None:
    fast, slow = np.full(1000, 0.01), np.full(1000, 1.0)
    assert quantile(np.concatenate([fast, slow]), 0.5) == 0.01
    assert quantile(np.concatenate([fast, slow]), 0.51) == 1.0


@pytest.mark.parametrize(("n", "q"), [(100, 0.5), (400, 0.9), (1000, 0.99), (5000, 0.99)])
def test_interval_ranks_have_the_exact_binomial_coverage(n: int, q: float) -> None:
    x = np.arange(1.0, n + 1)  # a sorted sample: value = rank
    interval = quantile_interval(x, q)
    first, last = int(interval.low), int(interval.high)
    exact = stats.binom.cdf(last - 1, n, q) - stats.binom.cdf(first - 1, n, q)
    assert 0.95 <= exact < 0.98
    assert interval.low <= interval.value <= interval.high
    library = stats.quantile_test(x, q=quantile(x, q), p=q).confidence_interval(0.95)
    assert abs(library.low - interval.low) <= 1
    assert abs(library.high - interval.high) <= 1


def test_too_few_for_p99_is_said_not_shown() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=999)
    with pytest.raises(TooFewSamples) as refusal:
        quantile_interval(x, 0.99, effective_n=999)
    assert refusal.value.needed == 1000
    assert isinstance(refusal.value, TooShort)
    quantile_interval(rng.exponential(size=1000), 0.99, effective_n=1000)
    with pytest.raises(TooFewSamples):
        quantile_interval(rng.exponential(size=99), 0.1)
    with pytest.raises(ValueError, match="effective_n"):
        quantile_interval(x, 0.5, effective_n=2000)


@pytest.mark.parametrize(("rho", "q", "n"), [(0.5, 0.9, 4000), (0.5, 0.99, 20_000), (0.8, 0.9, 30_000)])
def test_given_intervals_cover_quantiles_of_correlated_waits(rho: float, q: float, n: int) -> None:
    runs = 120
    rng = np.random.default_rng(4)
    service, gap = rng.exponential(1.0, (n, runs)), rng.exponential(1 / rho, (n, runs))
    wait = np.where(rng.random(runs) < rho, rng.exponential(1 / (1 - rho), runs), 0.0)
    out = np.empty((runs, n))
    for i in range(n):
        out[:, i] = wait
        wait = np.maximum(wait + service[i] - gap[i], 0.0)
    truth = np.log(rho / (1 - q)) / (1 - rho)  # P(wait > t) = rho exp(-(1 - rho) t)
    given = held = naive = 0
    for run in out:
        try:
            interval = quantile_interval(run, q)
        except TooFewSamples:
            continue
        given += 1
        held += interval.low <= truth <= interval.high
        iid = quantile_interval(run, q, effective_n=n)
        naive += iid.low <= truth <= iid.high
    assert given > 0.9 * runs
    assert stats.binom.cdf(held, given, 0.93) > 1e-3
    assert naive < 0.75 * given


def test_ccdf_by_hand() -> None:
    points, above = ccdf([1.0, 2.0, 2.0, 4.0, np.nan])
    assert points.tolist() == [1.0, 2.0, 4.0]
    np.testing.assert_allclose(above, [0.8, 0.4, 0.2])


def test_mean_excess_is_flat_for_exponential_and_linear_for_pareto() -> None:
    rng = np.random.default_rng(1)
    excess, number = mean_excess(rng.exponential(2.0, 400_000), [0.0, 1.0, 4.0])
    np.testing.assert_allclose(excess, 2.0, atol=5 * 2 / np.sqrt(number.min()))
    pareto = stats.genpareto.rvs(0.2, size=400_000, random_state=rng)
    excess, _ = mean_excess(pareto, [0.0, 2.0])
    np.testing.assert_allclose(excess, (1 + 0.2 * np.array([0.0, 2.0])) / 0.8, rtol=0.03)
    assert np.isnan(mean_excess([1.0], [2.0])[0][0])
    with pytest.raises(ValueError, match="infinite"):
        mean_excess([1.0, np.inf], [0.0])


def test_decay_rate_against_theory() -> None:
    rng = np.random.default_rng(2)
    x = rng.exponential(0.5, 50_000)
    assert decay_rate(x, theory=2.0).verdict == "agrees"
    assert decay_rate(x, theory=2.6).verdict == "differs"
    # hyperexponential: near the body the slow phase has not taken over
    mixed = np.where(rng.random(100_000) < 0.03, rng.exponential(5.0, 100_000), rng.exponential(1.0, 100_000))
    assert decay_rate(mixed, theory=0.2).verdict == "pre-asymptotic"
    assert decay_rate(x).verdict == ""
    with pytest.raises(TooFewSamples):
        decay_rate(x[:200])


def test_fan_out_agrees_with_independent_legs_and_shows_shared_queues() -> None:
    rng = np.random.default_rng(3)
    x = rng.exponential(1.0, 200_000)
    exact = -np.log1p(-(0.9 ** (1 / 10)))
    assert fan_out(x, 10, 0.9) == pytest.approx(exact, rel=0.02)
    assert fan_out_adjacent(x, 10, 0.9) == pytest.approx(exact, rel=0.03)
    together = np.repeat(x[:20_000], 10)  # all legs meet the same fate
    assert fan_out_adjacent(together, 10, 0.9) == pytest.approx(-np.log(0.1), rel=0.03)
    with pytest.raises(TooFewSamples):
        fan_out(x[:1000], 10, 0.95)
    with pytest.raises(TooFewSamples):
        fan_out_adjacent(x[:1000], 100, 0.9)
    with pytest.raises(ValueError, match="legs"):
        fan_out(x, 0, 0.5)


def test_serial_legs_add_up_to_an_erlang() -> None:
    x = np.random.default_rng(5).exponential(1.0, 100_000)
    assert serial(x, 4, 0.95) == pytest.approx(stats.gamma.ppf(0.95, 4), rel=0.02)
