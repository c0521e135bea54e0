"""Warm-up cuts on series whose transient is known."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.intervals import TooShort
from analysis.warmup import check_cut, mser5, welch, welch_cut


def test_mser5_is_the_criterion_of_its_definition() -> None:
    x = np.random.default_rng(0).normal(size=203) + 3 * np.exp(-np.arange(203) / 20)
    y = x[:200].reshape(40, 5).mean(axis=1)
    by_definition = [np.sum((y[d:] - y[d:].mean()) ** 2) / (40 - d) ** 2 for d in range(21)]
    assert mser5(x) == 5 * int(np.argmin(by_definition))


def test_a_transient_is_cut_and_a_stationary_series_hardly() -> None:
    rng = np.random.default_rng(1)
    cuts, none = [], []
    for _ in range(100):
        noise = rng.normal(size=1000)
        cuts.append(mser5(noise + np.where(np.arange(1000) < 200, 5.0, 0.0)))
        none.append(mser5(noise))
    assert min(cuts) >= 200
    assert np.median(cuts) < 260
    assert np.median(none) < 100
    assert mser5(np.ones(100)) == 0
    assert mser5(1e9 + np.where(np.arange(500) < 50, 1.0, 0.0)) == 50


def test_a_planned_cut_is_judged() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=2000) + 10 * np.exp(-np.arange(2000) / 100)
    assert check_cut(x, 600).verdict == "enough"
    assert check_cut(x, 0).verdict.startswith("too early")
    rising = rng.normal(size=1000) + np.where(np.arange(1000) < 800, np.arange(1000) * 0.05, 40.0)
    assert check_cut(rising, 500).verdict.startswith("too short")
    right = sum(check_cut(rng.normal(size=500), 50).verdict == "enough" for _ in range(300))
    assert right >= 285  # correct runs are not blamed
    with pytest.raises(ValueError, match="planned cut"):
        check_cut(x, 2000)
    with pytest.raises(TooShort):
        mser5(np.ones(49))


def test_welch_by_hand_and_on_a_known_transient() -> None:
    assert welch([[1.0, 2, 6, 3, 5, 4, 8, 1]], 2).tolist() == pytest.approx([1.0, 3.0, 3.4, 4.0, 5.2, 4.2])
    runs = np.random.default_rng(3).normal(10, 1, (20, 2000)) + 20 * np.exp(-np.arange(2000) / 100)
    cut = welch_cut(runs, 50)  # 20 exp(-i / 100) = 0.5 at i = 369
    assert 330 < cut < 430
    with pytest.raises(TooShort):
        welch_cut(np.arange(100.0), 5)
    with pytest.raises(ValueError, match="window"):
        welch(runs, 1000)
