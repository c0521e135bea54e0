"""Peaks over threshold against distributions whose tail is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.extremes import peaks_over_threshold
from analysis.tails import TooFewSamples


@pytest.mark.parametrize("shape", [0.0, 0.2])
def test_the_tail_of_independent_data_is_recovered(shape: float) -> None:
    x = stats.genpareto.rvs(shape, size=20_000, random_state=np.random.default_rng(1))
    fit = peaks_over_threshold(x, run_length=1)
    assert fit.shape == pytest.approx(shape, abs=4 * fit.shape_error)
    assert fit.exceedances == 1000
    truth = stats.genpareto.ppf(0.9995, shape)
    assert fit.quantile(0.9995) == pytest.approx(truth, rel=0.2)
    assert fit.exceedance(fit.quantile(0.9995)) == pytest.approx(0.0005)
    assert fit.ks_distance < 0.05


def test_the_location_is_not_forgotten_when_the_fit_is_judged() -> None:
    x = 1000 + stats.expon.rvs(size=10_000, random_state=np.random.default_rng(3))
    assert peaks_over_threshold(x).ks_distance < 0.06
    assert peaks_over_threshold(x).quantile(0.999) == pytest.approx(1000 - np.log(0.001), rel=0.001)


def test_clusters_count_once() -> None:
    # a moving maximum over m of independent values has extremal index 1 / m
    x = np.random.default_rng(2).exponential(size=60_000)
    moving = np.max([x[i : x.size - 4 + i] for i in range(5)], axis=0)
    fit = peaks_over_threshold(moving, threshold=float(np.quantile(moving, 0.98)))
    assert fit.extremal_index == pytest.approx(0.2, rel=0.25)
    independent = peaks_over_threshold(x)
    assert independent.extremal_index > 0.9


def test_too_few_peaks_and_bad_questions_are_refused() -> None:
    x = np.random.default_rng(0).exponential(size=900)
    with pytest.raises(TooFewSamples):
        peaks_over_threshold(x)
    with pytest.raises(ValueError, match="finite"):
        peaks_over_threshold([1.0, np.inf])
    fit = peaks_over_threshold(np.random.default_rng(0).exponential(size=9000))
    with pytest.raises(ValueError, match="above its threshold"):
        fit.exceedance(0.0)
    with pytest.raises(ValueError, match="the fit holds for q"):
        fit.quantile(0.5)
