"""Robust queueing: exact for M/G/1, near MMPP/M/1 where two-moment formulas are several times off; from measured curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.arrivals import MMPP2, Dispersion, dispersion_curve
from analysis.predictions.bursts import mmpp_gaps
from analysis.queues import GG1, MG1, MMPP1, RobustQueue, UnstableQueueError
from analysis.queues.service import exponential


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 0.98), st.floats(0.0, 20.0), st.floats(1e-3, 1e3))
def test_poisson_arrivals_give_pollaczek_and_khinchine(load: float, cs2: float, ES: float) -> None:
    exact = MG1(load / ES, (ES, ES**2 * (1 + cs2)))
    assert RobustQueue(load / ES, ES, cs2, lambda t: 1.0).Wq == pytest.approx(exact.Wq, rel=1e-7)


BURSTY = MMPP2((0.1, 1.1), (0.01, 0.01), 0.0, 0.0, 1)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.85])
def test_bursts_cost_what_mmpp_m_1_says_within_a_factor_where_klb_is_several_times_too_low(load: float) -> None:
    lam = BURSTY.mean_rate
    service = exponential(load / lam)
    exact = MMPP1(list(BURSTY.rates), [[-0.01, 0.01], [0.01, -0.01]], service).Wq
    robust = RobustQueue(lam, load / lam, 1.0, BURSTY.dispersion).Wq
    assert 0.6 < robust / exact < 1.7  # Whitt & You report up to some tens of per cent
    rng = np.random.default_rng(3)
    gaps = mmpp_gaps(BURSTY, rng, 200_000)
    ca2 = float(gaps.var() / gaps.mean() ** 2)
    assert exact > 2 * GG1(lam, load / lam, ca2, 1.0).Wq


def test_a_measured_curve_gives_what_the_known_one_gives() -> None:
    rng = np.random.default_rng(4)
    arrivals = np.cumsum(mmpp_gaps(BURSTY, rng, 400_000))
    end = float(arrivals[-1])
    curve = dispersion_curve(arrivals, 0.0, end, widths=np.geomspace(0.05, 3000.0, 12))
    known = RobustQueue(BURSTY.mean_rate, 1.1, 1.0, BURSTY.dispersion)
    # the index at 3,000 s comes from 200 windows: standard error 10 %
    assert RobustQueue(BURSTY.mean_rate, 1.1, 1.0, curve).Wq == pytest.approx(known.Wq, rel=0.2)


def test_it_rises_with_load_and_dispersion_and_says_what_it_cannot() -> None:
    waits = [RobustQueue(lam, 1.0, 0.5, lambda t: 2.0).Wq for lam in (0.1, 0.5, 0.9)]
    assert waits == sorted(waits)
    assert RobustQueue(0.5, 1.0, 0.5, lambda t: 3.0).Wq > waits[1]
    assert RobustQueue(0.5, 1.0, 0.5, lambda t: 2.0).kind == "approximation"
    with pytest.raises(NotImplementedError, match="mean wait only"):
        RobustQueue(0.5, 1.0, 0.5, lambda t: 2.0).wait_tail(1.0)
    with pytest.raises(UnstableQueueError):
        RobustQueue(1.5, 1.0, 0.5, lambda t: 1.0)
    broken = Dispersion(np.array([1.0, 2.0]), np.array([1.0, np.nan]), np.zeros(2), np.ones(2), np.array([9, 9]))
    with pytest.raises(ValueError, match="finite indices"):
        _ = RobustQueue(0.5, 1.0, 0.5, broken).Wq
