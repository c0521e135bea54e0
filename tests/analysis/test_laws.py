"""Laws fitted to lengths and times: the right family is found, a wrong one is refused, and p-values know of the fitting."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy import stats

import analysis.fit.lengths as lengths
from analysis.arrivals import goodness_of_fit
from analysis.fit.lengths import fit_laws
from analysis.intervals import TooShort


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(lengths).failed == 0


@pytest.mark.parametrize(
    ("truth", "family"),
    [
        (stats.geom(1 / 24), "geometric"),
        (stats.lognorm(s=0.7, scale=30.0), "lognormal"),
        (stats.weibull_min(2.0, scale=0.3), "weibull"),
    ],
)
def test_the_true_family_comes_first_and_fits(truth: object, family: str) -> None:
    values = truth.rvs(1000, random_state=np.random.default_rng(8))  # type: ignore[attr-defined]
    found = fit_laws(values)
    assert found[0].family == family
    assert found[0].verdict == "fits"
    other = "exponential" if family != "geometric" else "lognormal"
    assert {law.family: law.verdict for law in found}[other] == "differs"


def test_the_fitted_law_is_scipys_maximum_of_likelihood() -> None:
    values = np.random.default_rng(9).gamma(2.5, 0.2, 500)
    law = next(law for law in fit_laws(values, ["gamma"], resamples=19))
    shape, _, scale = stats.gamma.fit(values, floc=0)
    assert law.frozen.args[0] == pytest.approx(shape)
    assert law.aic == pytest.approx(4 - 2 * stats.gamma.logpdf(values, shape, scale=scale).sum())
    assert law.ks == pytest.approx(stats.kstest(values, law.frozen.cdf).statistic, rel=1e-12)


def test_p_values_are_those_of_scipys_own_parametric_bootstrap() -> None:
    values = np.random.default_rng(10).weibull(1.3, 200)
    ours = fit_laws(values, ["exponential"], resamples=999)[0]
    scipys = goodness_of_fit(values, stats.expon, {"loc": 0.0}, statistic="ks")
    # two estimates of one probability from 999 draws each: standard error of the difference at most .022
    assert ours.ks == pytest.approx(scipys.statistic, rel=1e-9)
    assert ours.p_value == pytest.approx(scipys.p_value, abs=0.07)


def test_mistakes_are_named() -> None:
    with pytest.raises(TooShort, match="values for a law"):
        fit_laws(np.arange(1.0, 20.0))
    with pytest.raises(ValueError, match="a constant, no law to fit"):
        fit_laws(np.full(50, 3.0))
    with pytest.raises(ValueError, match="no family is called 'normal'"):
        fit_laws(np.arange(50.0), ["normal"])
    with pytest.raises(ValueError, match="finite values, 0 or above"):
        fit_laws(np.arange(-1.0, 50.0))
