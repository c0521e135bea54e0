"""USL and Amdahl against exact curves, a non-linear fit of scipy's, and data that cannot tell a parameter."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from scipy import optimize

import analysis.fit.scalability as scalability
from analysis.fit.scalability import amdahl_of_step_time, fit_amdahl, fit_usl

LEVELS = np.repeat([1, 2, 4, 8, 12, 16, 24, 32.0], 3)


def usl(n: np.ndarray, lam: float, sigma: float, kappa: float) -> np.ndarray:
    return lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(scalability).failed == 0


@pytest.mark.parametrize(("sigma", "kappa"), [(0.0, 0.0), (0.02, 1e-4), (0.3, 0.01), (0.9, 0.0)])
def test_exact_curves_are_found_again(sigma: float, kappa: float) -> None:
    n = np.array([1, 2, 3, 6, 12, 24.0])
    fit = fit_usl(n, usl(n, 40.0, sigma, kappa))
    assert (fit.lam.value, fit.sigma.value, fit.kappa.value) == pytest.approx((40.0, sigma, kappa), rel=1e-6, abs=1e-8)
    assert fit.misfit < 1e-8
    np.testing.assert_allclose(fit.throughput(n), usl(n, 40.0, sigma, kappa), rtol=1e-7)


def test_a_step_of_a_plus_b_n_is_usl_without_kappa() -> None:
    a, b = 0.03, 0.002
    n = np.array([1, 2, 4, 8, 16, 32.0])
    lam, sigma = amdahl_of_step_time(a, b)
    np.testing.assert_allclose(n / (a + b * n), usl(n, lam, sigma, 0.0), rtol=1e-13)
    for fit in (fit_amdahl(n, n / (a + b * n)), fit_usl(n, n / (a + b * n))):
        assert (fit.lam.value, fit.sigma.value) == pytest.approx((lam, sigma), rel=1e-6)
    assert not fit.kappa.identified
    assert not fit.peak.identified


def test_the_fit_is_the_one_scipys_curve_fit_finds() -> None:
    rng = np.random.default_rng(4)
    x = usl(LEVELS, 100.0, 0.05, 0.001) * np.exp(rng.normal(0, 0.02, LEVELS.size))
    (log_lam, sigma, kappa), _ = optimize.curve_fit(
        lambda n, a, s, k: a + np.log(usl(n, 1.0, abs(s), abs(k))), LEVELS, np.log(x), p0=[4.0, 0.1, 0.01]
    )
    fit = fit_usl(LEVELS, x)
    found = (fit.lam.value, fit.sigma.value, fit.kappa.value)
    assert found == pytest.approx((math.exp(log_lam), sigma, kappa), rel=1e-4)
    assert fit.peak.value == pytest.approx(math.sqrt((1 - sigma) / kappa), rel=1e-4)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    held = np.zeros(3)
    for _ in range(25):
        fit = fit_usl(LEVELS, usl(LEVELS, 100.0, 0.05, 0.001) * np.exp(rng.normal(0, 0.02, LEVELS.size)))
        pairs = zip((fit.lam, fit.sigma, fit.kappa), (100.0, 0.05, 0.001), strict=True)
        held += [p.low <= truth <= p.high for p, truth in pairs]
    assert (held >= 20).all()  # of 25 at 95 %: fewer than 20 once in 800 times


def test_what_the_levels_do_not_tell_is_not_identified() -> None:
    n = np.array([1, 1, 2, 2, 3, 3, 4, 4.0])
    rng = np.random.default_rng(6)
    fit = fit_usl(n, usl(n, 10.0, 0.02, 0.0005) * np.exp(rng.normal(0, 0.05, n.size)))
    assert fit.kappa.note.startswith("not identified: 0 is as good")
    assert fit.peak.note.startswith("not identified")
    assert fit.lam.identified
    assert str(fit.kappa) == fit.kappa.note


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="3 levels of concurrency can't carry a fit; measure at least 4"):
        fit_usl([1, 2, 4, 4], [1, 2, 3, 3])
    with pytest.raises(ValueError, match="at least 1"):
        fit_amdahl([0.5, 1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="two equal series"):
        fit_amdahl([1, 2, 3], [1, 2])
