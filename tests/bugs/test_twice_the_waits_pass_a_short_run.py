"""At n = 300 and rho = .7 a system with twice the waits passed "theory inside the interval" in 74 % of runs."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.intervals import TooShort, batch_means, smallest_detectable
from analysis.predictions.base import TOO_COARSE, Prediction, band_of, judge
from analysis.predictions.one_seat import mg1_waits
from analysis.queues import MM1

RHO, N = 0.7, 300
THEORY = MM1(RHO, 1.0).Wq


def draws() -> np.ndarray:
    service = np.random.default_rng(0).exponential(1.0, 20_000)
    return mg1_waits(service, RHO, 200, N, 2000)[0]


def test_such_a_run_agrees_with_nothing_and_says_what_it_would_notice() -> None:
    simulated = draws()
    agreed = 0
    for measured in 2 * simulated[:200]:
        band = band_of(simulated, float(measured), THEORY)
        (row,) = judge(
            [Prediction("mg1", "mean wait", "s", predicted=THEORY, measured=float(measured), n=N, band=band)]
        )
        agreed += row.verdict == "agrees"
        assert row.detectable > TOO_COARSE
    assert agreed == 0


def test_its_batch_means_are_refused_or_state_a_deviation_that_large() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        steps = rng.exponential(1.0, N) - rng.exponential(1 / RHO, N)
        walk = np.concatenate([[0.0], np.cumsum(steps)[:-1]])
        waits = walk - np.minimum.accumulate(walk)
        with pytest.raises(TooShort) as refused:
            raise_if_coarse(waits)
        assert refused.value.n == N


def raise_if_coarse(waits: np.ndarray) -> None:
    """Refused by the method itself, or an interval that would not notice three tenths."""
    estimate = batch_means(waits)
    if smallest_detectable(estimate) > TOO_COARSE * THEORY:
        raise TooShort("detects too little", estimate.n)
