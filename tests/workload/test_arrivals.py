"""Arrival processes are the process their name says: against theory, over seeds, at one overall 1 % level."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from workload.arrivals import arrival_times, parse_arrivals
from workload.lengths import draw_lengths
from workload.processes.modulated import mmpp_dispersion, stationary
from workload.processes.renewal import weibull_shape

RENEWAL: dict[str, dict[str, Any]] = {
    "poisson": {"process": "poisson", "rate": 5.0},
    "gamma smooth": {"process": "gamma", "rate": 5.0, "cv": 0.5},
    "gamma bursty": {"process": "gamma", "rate": 5.0, "cv": 2.0},
    "weibull smooth": {"process": "weibull", "rate": 5.0, "cv": 0.5},
    "weibull": {"process": "weibull", "rate": 5.0, "cv": 1.5},
}  # constant, the one left, is known to the last digit: below
SEEDS = range(20)
N = 20_000
TESTS = len(RENEWAL) * 3  # families of tests below; each gets its share of the 1 %
LEVEL = 0.01 / TESTS


def gap_law(spec: dict[str, Any]) -> Any:
    """The gaps' law by scipy, from the textbook parametrisation."""
    rate, cv = spec["rate"], spec.get("cv", 1.0)
    if spec["process"] == "poisson":
        return stats.expon(scale=1 / rate)
    if spec["process"] == "gamma":
        return stats.gamma(1 / cv**2, scale=cv**2 / rate)
    shape = weibull_shape(cv)
    return stats.weibull_min(shape, scale=1 / (rate * math.gamma(1 + 1 / shape)))


def gaps_of(spec: dict[str, Any], seed: int, n: int = N) -> np.ndarray:
    return np.diff(arrival_times(spec, n=n, seed=seed), prepend=0.0)


@pytest.mark.parametrize("name", RENEWAL)
def test_gaps_follow_their_law_over_twenty_seeds(name: str) -> None:
    law = gap_law(RENEWAL[name])
    p_values = [stats.kstest(gaps_of(RENEWAL[name], seed), law.cdf).pvalue for seed in SEEDS]
    assert stats.kstest(p_values, "uniform").pvalue > LEVEL  # not only "not too small": neither too good


@pytest.mark.parametrize("name", RENEWAL)
def test_successive_gaps_are_uncorrelated(name: str) -> None:
    scores = []
    for seed in SEEDS:
        ranks = stats.rankdata(gaps_of(RENEWAL[name], seed))  # ranks: the normal limit holds whatever the tail
        scores.append(np.corrcoef(ranks[:-1], ranks[1:])[0, 1] * math.sqrt(N - 1))
    assert stats.kstest(scores, "norm").pvalue > LEVEL


@pytest.mark.parametrize("name", RENEWAL)
def test_index_of_dispersion_at_three_widths_is_that_of_the_same_law_drawn_by_scipy(name: str) -> None:
    spec, law = RENEWAL[name], gap_law(RENEWAL[name])
    horizon = 0.9 * N / spec["rate"]
    for width in (0.2, 2.0, 20.0):
        bins = np.arange(0, horizon, width)

        def dispersion(gaps: np.ndarray, bins: np.ndarray = bins) -> float:
            counts = np.histogram(np.cumsum(gaps), bins)[0]
            return float(counts.var() / counts.mean())

        ours = [dispersion(gaps_of(spec, seed)) for seed in SEEDS]
        theirs = [dispersion(law.rvs(N, random_state=1000 + seed)) for seed in SEEDS]
        assert stats.ttest_ind(ours, theirs, equal_var=False).pvalue > LEVEL / 3


def test_poisson_counts_have_dispersion_one() -> None:
    for width, seed in ((0.05, 1), (1.0, 2), (10.0, 3)):
        times = arrival_times({"process": "poisson", "rate": 20.0}, duration=5000.0, seed=seed)
        counts = np.histogram(times, np.arange(0, 5000 + width / 2, width))[0]
        scaled = counts.var(ddof=1) / counts.mean() * (len(counts) - 1)  # chi-squared (Cox and Lewis 1966, ch. 6)
        assert LEVEL < stats.chi2.cdf(scaled, len(counts) - 1) < 1 - LEVEL


@pytest.mark.parametrize("period", [1.0, 0.001])
def test_no_phase_of_the_second_or_millisecond_is_preferred(period: float) -> None:
    times = arrival_times({"process": "poisson", "rate": 50.0}, n=100_000, seed=4)
    cells = np.histogram(np.mod(times, period), 500 if period == 1.0 else 50, (0, period))[0]
    assert stats.chisquare(cells).pvalue > LEVEL


@pytest.mark.parametrize("name", RENEWAL)
def test_a_rate_stretches_one_unit_rate_sequence(name: str) -> None:
    spec = RENEWAL[name]
    unit = arrival_times({**spec, "rate": 1.0}, n=10_000, seed=7)
    assert np.array_equal(arrival_times({**spec, "rate": 3.7}, n=10_000, seed=7), unit / 3.7)


@pytest.mark.parametrize(
    "spec",
    [
        *RENEWAL.values(),
        {"process": "burst", "rate": 5.0, "size": 3},
        {"process": "mmpp", "rates": [2, 20], "sojourn": [30, 5]},
        {"process": "piecewise", "profile": [[0, 1], [10, 5]], "period": 20},
    ],
    ids=lambda spec: spec["process"],
)
def test_a_longer_timeline_begins_with_the_shorter_one(spec: dict[str, Any]) -> None:
    long = arrival_times(spec, n=9000, seed=3)
    assert np.array_equal(long[:5000], arrival_times(spec, n=5000, seed=3))
    end = float(long[6000])
    assert np.array_equal(long[long < end], arrival_times(spec, duration=end, seed=3))
    assert not np.array_equal(long[:100], arrival_times(spec, n=100, seed=4)) or spec["process"] == "burst"
    assert (np.diff(long) >= 0).all()


def test_the_first_arrival_of_a_constant_process_comes_after_one_gap_and_of_a_burst_at_once() -> None:
    assert arrival_times({"process": "constant", "rate": 4}, n=3).tolist() == [0.25, 0.5, 0.75]
    assert arrival_times({"process": "burst", "rate": 4, "size": 2}, n=5).tolist() == [0, 0, 0.5, 0.5, 1.0]


def test_fixed_count_gives_the_count_and_uniform_places() -> None:
    spec = {"process": "poisson", "rate": 5.0, "fixed_count": True}
    for seed in range(200):
        times = arrival_times(spec, duration=20.0, seed=seed)
        assert len(times) == 100
        assert times[-1] < 20.0
    everything = np.concatenate([arrival_times(spec, duration=20.0, seed=seed) for seed in range(200)])
    assert (
        stats.kstest(everything / 20.0, "uniform").pvalue > LEVEL
    )  # Poisson given its count: uniform order statistics


def test_one_seed_for_arrivals_and_lengths_gives_unrelated_streams() -> None:
    for seed in range(5):
        gaps = gaps_of({"process": "poisson", "rate": 1.0}, seed)
        prompt, output = draw_lengths(
            {"dist": "exponential", "mean": 1000}, {"dist": "exponential", "mean": 1000}, N, seed
        )
        for one, other in ((gaps, prompt), (gaps, output), (prompt, output)):
            rank = stats.spearmanr(one, other).statistic
            assert abs(rank) * math.sqrt(N) < stats.norm.isf(LEVEL / 30)


def dispersion_of_two_states(rates: tuple[float, float], leave: tuple[float, float], t: float) -> float:
    """Index of dispersion of a two-state MMPP, written out (Fischer and Meier-Hellstern 1993)."""
    (a, b), (r1, r2) = rates, leave
    s = r1 + r2
    jump = 2 * (a - b) ** 2 * r1 * r2 / (s**2 * (a * r2 + b * r1))
    return 1 + jump - jump / (s * t) * (1 - math.exp(-s * t))


@pytest.mark.parametrize("t", [0.01, 1.0, 10.0, 1000.0])
def test_matrix_dispersion_of_mmpp_equals_the_two_state_formula(t: float) -> None:
    chain = np.array([[-1 / 30, 1 / 30], [1 / 5, -1 / 5]])
    ours = mmpp_dispersion(np.array([2.0, 20.0]), chain, t)
    assert ours == pytest.approx(dispersion_of_two_states((2, 20), (1 / 30, 1 / 5), t), rel=1e-9)


@pytest.mark.parametrize(
    "spec",
    [
        {"process": "mmpp", "rates": [2.0, 20.0], "sojourn": [3.0, 0.5]},
        {"process": "mmpp", "rates": [1, 4, 0], "rate": 6.0, "generator": [[-1, 0.5, 0.5], [1, -2, 1], [3, 0, -3]]},
    ],
    ids=["two states", "three states, scaled"],
)
def test_mmpp_has_its_own_mean_and_dispersion(spec: dict[str, Any]) -> None:
    parsed = parse_arrivals(spec)
    horizon, runs = 1000.0, 60
    for width in (0.1, 1.0, 10.0):
        bins = np.arange(0, horizon + width / 2, width)
        counts = np.array(
            [np.histogram(arrival_times(spec, duration=horizon, seed=s), bins)[0] for s in range(runs)], dtype=float
        )
        mean = counts.mean(axis=1)
        expected = parsed.mean_rate * width
        assert stats.ttest_1samp(mean, expected).pvalue > LEVEL / 3
        spread = ((counts - expected) ** 2).mean(axis=1)  # about the known mean: unbiased
        assert stats.ttest_1samp(spread, expected * parsed.index_of_dispersion(width)).pvalue > LEVEL / 3


def test_mmpp_starts_stationary() -> None:
    spec = {"process": "mmpp", "rates": [1.0, 50.0], "sojourn": [20.0, 5.0]}
    parsed = parse_arrivals(spec)
    first = np.array([len(arrival_times(spec, duration=0.5, seed=s)) for s in range(600)], dtype=float)
    assert stats.ttest_1samp(first, parsed.mean_rate * 0.5).pvalue > LEVEL
    assert stationary(parsed.chain) @ parsed.chain == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("interpolate", ["step", "linear"])
def test_piecewise_is_poisson_in_its_own_time_and_its_inverse_is_exact(interpolate: str) -> None:
    spec = {
        "process": "piecewise",
        "profile": [[0, 1], [10, 5], [20, 0], [30, 0], [35, 2]],
        "period": 40,
        "rate": 2.0,
        "interpolate": interpolate,
    }
    parsed = parse_arrivals(spec)
    times = arrival_times(spec, n=20_000, seed=5)
    own_time = 2.0 * parsed.cumulative(times)
    assert stats.kstest(np.diff(own_time), "expon").pvalue > LEVEL
    unit = arrival_times({"process": "piecewise", "profile": [[0, 1]]}, n=20_000, seed=5)
    assert np.allclose(own_time, unit, rtol=1e-9)
    if interpolate == "step":
        assert not ((np.mod(times, 40) > 20) & (np.mod(times, 40) < 35)).any()  # nobody comes while the rate is 0


def test_piecewise_counts_by_hand() -> None:
    ramp = parse_arrivals({"process": "piecewise", "profile": [[0, 0], [10, 4]], "interpolate": "linear"})
    assert ramp.cumulative(np.array([0.0, 5.0, 10.0, 12.0])).tolist() == [0.0, 5.0, 20.0, 28.0]
    assert ramp.inverse(np.array([0.0, 5.0, 20.0, 28.0])) == pytest.approx([0.0, 5.0, 10.0, 12.0])
    assert ramp.expected_count(12.0) == pytest.approx(28.0)
    day = {"process": "piecewise", "profile": [[0, 3], [5, 0]]}
    times = arrival_times(day, n=1000, seed=1)
    assert len(times) < 60  # mean 15: the profile falls to 0 for good, and so does the process
    assert times[-1] < 5.0


def test_an_overload_pulse_is_a_profile_of_loads() -> None:
    spec = parse_arrivals({"process": "piecewise", "profile": [[0, 0.8], [60, 1.2], [120, 0.8]], "load": 1.0})
    assert spec.at_rate(10.0).expected_count(180.0) == pytest.approx(10 * (48 + 72 + 48))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"process": "poisson", "rate": 0}, ["rate", "found 0", "greater than 0"]),
        ({"process": "poisson", "rate": -3.0}, ["rate", "-3.0", "greater than 0"]),
        ({"process": "poisson", "rate": float("nan")}, ["rate", "nan", "finite"]),
        ({"process": "poisson", "rate": "5"}, ["rate", "'5'", "number"]),
        ({"process": "poisson", "rate": True}, ["rate", "True", "number"]),
        ({"process": "poisson"}, ["neither", "'rate'", "'load'"]),
        ({"process": "poisson", "rate": 1, "load": 0.5}, ["both", "'rate'", "'load'"]),
        ({"process": "poison", "rate": 1}, ["'poison'", "did you mean 'poisson'"]),
        ({"process": "poisson", "rat": 1}, ["'rat'", "did you mean 'rate'"]),
        ({"rate": 1}, ["'process' is missing", "poisson"]),
        ({"process": "gamma", "rate": 1}, ["'cv' is missing"]),
        ({"process": "burst", "rate": 1, "size": 2.5}, ["size", "2.5"]),
        ({"process": "mmpp", "rates": [1, 2]}, ["neither", "sojourn", "generator"]),
        ({"process": "mmpp", "rates": [1, 2], "generator": [[-1, 1], [0, 0]]}, ["reach"]),
        ({"process": "mmpp", "rates": [1, 2], "generator": [[-1, 2], [1, -1]]}, ["sum to 0"]),
        ({"process": "piecewise", "profile": [[1, 1]]}, ["start at 0"]),
        ({"process": "piecewise", "profile": [[0, 1], [0, 2]]}, ["ascend"]),
        ({"process": "poisson", "load": 0.8}, ["load = 0.8", "at_rate"]),
    ],
)
def test_a_mistake_names_key_found_and_allowed(spec: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        arrival_times(spec, n=10)
    assert all(word in str(caught.value) for word in words), caught.value


def test_neither_count_nor_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="needs n"):
        arrival_times({"process": "poisson", "rate": 1.0})
    with pytest.raises(ValueError, match="n is -1"):
        arrival_times({"process": "poisson", "rate": 1.0}, n=-1)
