"""Drift against wobble: how often a machine that only wobbles is said to drift, and whether a real drift is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.capacity import DRIFT_LIMIT, Drift, drift
from analysis.machine_speed import Wobble, wobble
from tests.analysis.test_capacity import saturated_run


def judged(before: float, after: float, known: Wobble) -> str:
    """The verdict on two levels that differ by nothing but the machine's speed."""
    ratio, half = after / before - 1, known.half_width(0.95)
    return Drift(ratio, (1 + ratio) * math.exp(-half) - 1, (1 + ratio) * math.exp(half) - 1, 100, 0.95).verdict


def verdicts(spread: float, drifts: float, runs: int = 8, repeats: int = 2000) -> dict[str, float]:
    rng = np.random.default_rng(3)
    trend = np.log1p(drifts) * np.linspace(0, 1, runs)
    found = []
    for _ in range(repeats):
        levels = np.exp(trend + rng.normal(scale=spread, size=runs))
        known = wobble([levels.tolist()])
        assert known is not None
        found.append(judged(levels[0], levels[-1], known))
    return {kind: found.count(kind) / repeats for kind in ("steady", "drifted", "undecided")}


def test_a_machine_that_only_wobbles_is_hardly_ever_said_to_drift() -> None:
    for spread in (0.01, 0.03, 0.1):
        assert verdicts(spread, 0.0)["drifted"] <= 0.05
    assert verdicts(0.005, 0.0)["steady"] > 0.9
    assert verdicts(0.1, 0.0)["steady"] < 0.02  # a machine that wobbles by 10 % can't be shown to be steady within 5 %


def test_a_drift_beyond_the_limit_is_found_where_the_wobble_is_small_and_never_called_steady() -> None:
    assert verdicts(0.005, 0.12)["drifted"] > 0.9
    for spread in (0.005, 0.02, 0.05):
        assert verdicts(spread, DRIFT_LIMIT + 0.001)["steady"] <= 0.05


def test_the_wobble_is_the_standard_deviation_and_leaves_out_a_slow_trend() -> None:
    rng = np.random.default_rng(4)
    levels = np.exp(np.linspace(0, 0.5, 4000) + rng.normal(scale=0.02, size=4000))
    found = wobble([levels.tolist(), [1.0, 1.0]])  # two levels are a drift, not a wobble
    assert found is not None
    assert found.differences == 3999
    assert found.spread == pytest.approx(0.02, rel=0.05)
    assert found.half_width(0.95) == pytest.approx(stats.norm.ppf(0.975) * 0.02 * math.sqrt(2), rel=0.06)
    assert wobble([[1.0, 1.1]]) is None


def test_the_interval_of_two_calibrations_holds_the_wobble() -> None:
    before, after = saturated_run(), saturated_run(slower=1.08)
    assert drift(before, after).verdict == "drifted"
    wide = drift(before, after, wobble=Wobble(0.03, 6))
    assert wide.verdict == "undecided"
    assert wide.low < DRIFT_LIMIT < wide.high
    assert "wobbles by 3 %" in str(wide)
