"""GI/M/1 against M/M/1, a hand-solved Erlang case, D/M/1 and an embedded chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from analysis.queues import GIM1, MM1, UnstableQueueError
from analysis.queues.service import Deterministic, erlang, exponential


def test_exponential_gaps_are_mm1() -> None:
    q, exact = GIM1(exponential(1 / 0.7), 1.0), MM1(0.7, 1.0)
    assert (q.L, q.Lq, q.W, q.Wq, q.rho) == pytest.approx((exact.L, exact.Lq, exact.W, exact.Wq, exact.rho), rel=1e-9)
    assert q.wait_quantile(0.99) == pytest.approx(exact.wait_quantile(0.99), rel=1e-9)
    assert q.sojourn_quantile(0.99) == pytest.approx(exact.sojourn_quantile(0.99), rel=1e-9)
    assert [q.prob(n) for n in range(9)] == pytest.approx([exact.prob(n) for n in range(9)], rel=1e-9)


def test_erlang_2_gaps_solve_a_cubic() -> None:
    # sigma = (r / (r + mu (1 - sigma)))^2 with r = 2 lam; sigma = 1 divided out leaves a quadratic.
    lam, mu = 0.8, 1.0
    r = 2 * lam
    x = r / mu
    sigma = (1 + 2 * x - math.sqrt(1 + 4 * x)) / 2
    assert sigma == pytest.approx((r / (r + mu * (1 - sigma))) ** 2)
    assert GIM1(erlang(2, 1 / lam), mu).sigma == pytest.approx(sigma, rel=1e-9)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.99, 0.9999])
def test_constant_gaps(rho: float) -> None:
    q = GIM1(Deterministic(1 / rho), 1.0)
    assert q.sigma == pytest.approx(math.exp(-(1 - q.sigma) / rho), rel=1e-9)
    assert 0 < q.sigma < rho


def test_scipy_and_data_gaps_agree_with_quadrature() -> None:
    frozen = stats.uniform(0.0, 3.0)
    q = GIM1(frozen, 1.0)
    s = 1 - q.sigma
    assert q.sigma == pytest.approx((1 - math.exp(-3 * s)) / (3 * s), rel=1e-9)
    data = np.array([0.5, 1.0, 3.0])
    q = GIM1(data, 1.0)
    assert q.sigma == pytest.approx(np.exp(-data * (1 - q.sigma)).mean(), rel=1e-9)
    bursty = GIM1(stats.lognorm(s=1.5, scale=0.5), 1.0)
    assert bursty.Wq > MM1(bursty.lam, 1.0).Wq
    assert pytest.approx(bursty.rho / (1 - bursty.sigma), rel=1e-9) == bursty.L


def test_gaps_may_have_infinite_variance() -> None:
    q = GIM1(stats.pareto(1.5), 1.0)
    s = 1 - q.sigma
    transform = quad(lambda x: 1.5 * x**-2.5 * math.exp(-s * x), 1.0, math.inf, epsrel=1e-11, limit=300)[0]
    assert q.sigma == pytest.approx(transform, rel=1e-8)


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        GIM1(exponential(1.0), 1.0)
    with pytest.raises(NotImplementedError, match="moments"):
        _ = GIM1((2.0, 8.0), 1.0).Wq
    with pytest.raises(ValueError, match="mu"):
        GIM1(exponential(1.0), -2.0)
