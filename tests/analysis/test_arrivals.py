"""Arrival tests keep their level on true Poisson streams and see what the tools in the pitfalls did wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg, stats

from analysis.arrivals import (
    MMPP2,
    _mmpp2_log_likelihood,
    conditional_uniform_ks,
    dispersion_curve,
    fit_mmpp2,
    gap_correlation,
    goodness_of_fit,
    lewis_ks,
    phase,
)
from analysis.intervals import TooShort

Array = NDArray[np.float64]


def poisson(rng: np.random.Generator, rate: float = 5.0, end: float = 100.0) -> Array:
    return np.sort(rng.uniform(0, end, rng.poisson(rate * end)))


def mmpp(rng: np.random.Generator, rates: tuple[float, float], leave: tuple[float, float], end: float) -> Array:
    pieces, t, state = [], 0.0, 0
    while t < end:
        stay = rng.exponential(1 / leave[state])
        pieces.append(t + rng.uniform(0, stay, rng.poisson(rates[state] * stay)))
        t, state = t + stay, 1 - state
    times = np.sort(np.concatenate(pieces))
    return times[times < end]


def test_tests_keep_their_level_on_poisson_arrivals() -> None:
    rng = np.random.default_rng(1)
    runs = 200
    rejected = np.zeros(5)
    for _ in range(runs):
        x = poisson(rng)
        rejected += [
            conditional_uniform_ks(x, 0, 100).p_value < 0.05,
            lewis_ks(x, 0, 100).p_value < 0.05,
            not dispersion_curve(x, 0, 100).poisson,
            gap_correlation(x).p_value < 0.05,
            phase(x).p_value < 0.05,
        ]
    allowed = stats.binom.isf(1e-3, runs, 0.05)
    assert (rejected <= allowed).all(), rejected
    assert rejected[1] >= stats.binom.ppf(1e-3, runs, 0.05)


def test_lewis_p_values_are_uniform() -> None:
    rng = np.random.default_rng(2)
    p = [lewis_ks(poisson(rng), 0, 100).p_value for _ in range(150)]
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_changing_rate_and_other_gaps_are_seen_by_their_tests() -> None:
    rng = np.random.default_rng(3)
    ramp = 100 * np.sqrt(np.sort(rng.uniform(0, 1, 500)))
    assert conditional_uniform_ks(ramp, 0, 100).p_value < 1e-6
    regular = np.cumsum(rng.gamma(4, 0.05, 500))
    assert lewis_ks(regular, 0, regular[-1]).p_value < 1e-6
    bursty = np.cumsum(rng.weibull(0.6, 500))
    assert lewis_ks(bursty, 0, bursty[-1]).p_value < 1e-6
    dispersion = dispersion_curve(regular, 0, regular[-1])
    assert not dispersion.poisson
    assert dispersion.index[-1] == pytest.approx(0.25, abs=0.25)


def test_workers_that_share_a_seed_are_seen() -> None:
    # ten workers, one stream: every gap is planned ten times
    rng = np.random.default_rng(4)
    one = np.cumsum(rng.exponential(2.0, 300))
    shared = np.sort(np.concatenate([one + rng.uniform(0, 1e-3, 300) for _ in range(10)]))
    curve = dispersion_curve(shared, 0, 600)
    assert not curve.poisson
    assert curve.index.max() > 7
    assert lewis_ks(shared, 0, 600).p_value < 1e-9


def test_an_arrival_on_every_whole_second_is_seen() -> None:
    rng = np.random.default_rng(5)
    combed = np.sort(np.concatenate([poisson(rng, rate=24.0, end=200.0), np.arange(200) + 1e-4]))
    found = phase(combed)
    assert found.statistic > 0.03
    assert found.p_value < 1e-9
    # a timer of 1 ms: all arrivals within the first tenth of a millisecond
    ticks = np.ceil(poisson(rng) * 1e3) / 1e3 + rng.uniform(0, 1e-4, 1)
    assert phase(ticks, period_s=1e-3, cells=20).p_value < 1e-9


def test_dispersion_by_hand() -> None:
    # counts 3, 1, 0, 2: mean 1.5, variance 5/3
    curve = dispersion_curve([0.1, 0.2, 0.3, 1.5, 3.1, 3.9], 0, 4, widths=[1.0])
    assert curve.index[0] == pytest.approx(5 / 3 / 1.5)
    assert curve.windows[0] == 4
    with pytest.raises(ValueError, match="widths"):
        dispersion_curve([0.1], 0, 4, widths=[3.0])
    with pytest.raises(TooShort):
        dispersion_curve([0.1], 0, 4)


def test_mmpp_likelihood_is_the_product_of_matrix_exponentials() -> None:
    gaps = np.random.default_rng(6).exponential(0.3, 23)
    l1, l2, r1, r2 = 1.0, 7.0, 0.4, 1.3
    matrix = np.array([[-r1 - l1, r1], [r2, -r2 - l2]])
    vector = np.array([l1 * r2, l2 * r1]) / (l1 * r2 + l2 * r1)
    for gap in gaps:
        vector = vector @ linalg.expm(matrix * gap) @ np.diag([l1, l2])
    assert _mmpp2_log_likelihood(gaps, l1, l2, r1, r2) == pytest.approx(np.log(vector.sum()))


def test_an_mmpp_is_recovered_and_a_poisson_process_is_not_mistaken_for_one() -> None:
    rng = np.random.default_rng(7)
    truth = MMPP2((2.0, 20.0), (0.1, 0.2), 0, 0, 0)
    x = mmpp(rng, truth.rates, truth.leave, 1500.0)
    fit = fit_mmpp2(x)
    assert fit.better_than_poisson
    # some 100 visits to each state: rates known to a few percent, the times of stay to 10 %
    assert fit.rates == pytest.approx(truth.rates, rel=0.15)
    assert fit.leave == pytest.approx(truth.leave, rel=0.4)
    assert fit.mean_rate == pytest.approx(x.size / 1500, rel=0.1)
    assert not fit_mmpp2(poisson(rng, 5.0, 400.0)).better_than_poisson
    with pytest.raises(ValueError, match="gaps are 0"):
        fit_mmpp2(np.repeat(x, 2))
    with pytest.raises(TooShort):
        fit_mmpp2(x[:100])


def test_the_dispersion_of_an_mmpp_is_that_of_its_counts() -> None:
    rng = np.random.default_rng(8)
    process = MMPP2((2.0, 20.0), (1.0, 2.0), 0, 0, 0)
    x = mmpp(rng, process.rates, process.leave, 6000.0)
    curve = dispersion_curve(x, 0, 6000, widths=[0.1, 1.0, 10.0])
    expected = [process.dispersion(w) for w in (0.1, 1.0, 10.0)]
    assert curve.index == pytest.approx(expected, rel=0.15)
    assert expected[0] < 2 < expected[2]


def test_goodness_of_fit_allows_for_the_fitting() -> None:
    rng = np.random.default_rng(9)
    small = [
        goodness_of_fit(rng.exponential(3.0, 80), stats.expon, {"loc": 0}, resamples=99).p_value for _ in range(60)
    ]
    assert stats.kstest(small, "uniform").pvalue > 1e-3  # a naive KS test would give p-values near 1
    assert goodness_of_fit(rng.lognormal(0, 1, 300), stats.expon, {"loc": 0}, resamples=199).p_value < 0.02
    thinned = goodness_of_fit(rng.exponential(1, 5000), stats.expon, {"loc": 0}, resamples=99, most=500)
    assert thinned.n == 500
    with pytest.raises(ValueError, match="finite"):
        goodness_of_fit([1.0, np.nan], stats.expon)
