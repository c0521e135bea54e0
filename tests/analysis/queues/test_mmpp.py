"""MMPP/PH/1 against M/G/1, a truncated chain, and the limits of slow and fast switching."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.queues import GG1, MG1, MM1, MMPP1, UnstableQueueError
from analysis.queues.service import erlang, exponential, hyperexponential

SWITCH = [[-0.2, 0.2], [0.1, -0.1]]


@pytest.mark.parametrize("service", [exponential(1.0), erlang(3, 1.0), hyperexponential([0.9, 0.1], [1.8, 0.2])])
def test_equal_rates_are_poisson(service) -> None:
    q, exact = MMPP1([0.7, 0.7], SWITCH, service), MG1(0.7, service)
    assert (q.lam, q.W, q.Lq) == pytest.approx((exact.lam, exact.W, exact.Lq), rel=1e-9)
    assert q.decay_rate == pytest.approx(exact.decay_rate, rel=1e-9)
    for t in (0.0, 0.6, 8.0):
        assert q.wait_tail(t) == pytest.approx(exact.wait_tail(t), rel=1e-9)
        assert q.sojourn_tail(t) == pytest.approx(exact.sojourn_tail(t), rel=1e-9)


def test_agrees_with_a_truncated_markov_chain() -> None:
    rates, switch, mu, size = (
        np.array([1.3, 0.2, 0.6]),
        np.array([[-0.5, 0.3, 0.2], [0.1, -0.3, 0.2], [0.4, 0.4, -0.8]]),
        1.0,
        260,
    )
    k = rates.size
    Q = np.zeros((size * k, size * k))
    for n in range(size):
        here = slice(n * k, (n + 1) * k)
        Q[here, here] += switch
        if n < size - 1:
            Q[here, (n + 1) * k : (n + 2) * k] += np.diag(rates)
        if n:
            Q[here, (n - 1) * k : n * k] += mu * np.eye(k)
    np.fill_diagonal(Q, Q.diagonal() - Q.sum(axis=1))
    A = Q.T.copy()
    A[-1] = 1.0
    p = np.linalg.solve(A, np.eye(size * k)[-1]).reshape(size, k)
    q = MMPP1(rates, switch, exponential(1 / mu))
    found = p @ rates / (p @ rates).sum()  # what an arrival sees is not the time average
    n = np.arange(size)
    assert pytest.approx(p.sum(axis=1) @ n, rel=1e-9) == q.L
    assert q.rho == pytest.approx(1 - p[0].sum(), rel=1e-9)
    for t in (0.0, 1.0, 10.0, 25.0):
        assert q.wait_tail(t) == pytest.approx(float(found[1:] @ stats.poisson.cdf(n[1:] - 1, mu * t)), rel=1e-7)
        assert q.sojourn_tail(t) == pytest.approx(float(found @ stats.poisson.cdf(n, mu * t)), rel=1e-7)


def test_fast_switching_is_poisson_and_slow_switching_a_mixture() -> None:
    fast = MMPP1([1.2, 0.2], [[-1e6, 1e6], [1e6, -1e6]], exponential(1.0))
    assert fast.Wq == pytest.approx(MM1(0.7, 1.0).Wq, rel=1e-5)
    slow = MMPP1([0.9, 0.3], [[-1e-7, 1e-7], [1e-7, -1e-7]], exponential(1.0))
    mixture = (0.9 * MM1(0.9, 1.0).Wq + 0.3 * MM1(0.3, 1.0).Wq) / 1.2
    assert slow.Wq == pytest.approx(mixture, rel=1e-4)


def test_bursts_wait_far_longer_than_a_renewal_formula_of_the_same_variation_says() -> None:
    rates, Q = np.array([1.6, 0.1]), np.array([[-0.02, 0.02], [0.02, -0.02]])
    q = MMPP1(rates, Q, exponential(1.0))
    D0 = Q - np.diag(rates)
    start = q.stationary * rates / q.lam
    M = np.linalg.inv(-D0)
    mean, second = start @ M @ np.ones(2), 2 * start @ M @ M @ np.ones(2)
    assert mean == pytest.approx(1 / q.lam)
    klb = GG1(q.lam, 1.0, second / mean**2 - 1, 1.0)
    assert q.Wq > 2 * klb.Wq


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        MMPP1([2.0, 0.5], [[-1.0, 1.0], [1.0, -1.0]], exponential(1.0))
    with pytest.raises(ValueError, match="sum to 0"):
        MMPP1([0.2, 0.5], [[-1.0, 0.5], [1.0, -1.0]], exponential(1.0))
    with pytest.raises(ValueError, match="reducible"):
        MMPP1([0.2, 0.5], [[0.0, 0.0], [0.0, 0.0]], exponential(1.0))
    with pytest.raises(ValueError, match="two_moment"):
        MMPP1([0.2, 0.5], SWITCH, stats.lognorm(s=1.0))
    with pytest.raises(ValueError, match="shape"):
        MMPP1([0.2], SWITCH, exponential(1.0))
