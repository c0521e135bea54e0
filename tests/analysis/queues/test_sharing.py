"""Processor sharing, limited sharing and birth-death queues: identities, and a tagged request's own chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.queues import MG1, MM1, PS, LimitedPS, MMc, MMcK, StateDependent, UnstableQueueError


def test_ps_mean_is_mm1_mean() -> None:
    q, exact = PS(0.8, 1.0), MM1(0.8, 1.0)
    assert (q.W, q.L, q.rho) == pytest.approx((exact.W, exact.L, exact.rho), rel=1e-12)
    assert q.wait_tail(0.0) == 0.0
    assert q.sojourn_of(2.0) == pytest.approx(10.0)
    with pytest.raises(NotImplementedError, match="depends on"):
        q.sojourn_quantile(0.9)


def test_birth_death_with_min_n_c_is_mmc() -> None:
    q, exact = StateDependent(3.2, lambda n: min(n, 4) * 1.0, seats=4), MMc(3.2, 1.0, 4)
    assert (q.L, q.Lq, q.W, q.Wq) == pytest.approx((exact.L, exact.Lq, exact.W, exact.Wq), rel=1e-9)
    for t in (0.0, 1.0, 5.0):
        assert q.wait_tail(t) == pytest.approx(exact.wait_tail(t), rel=1e-9)
    assert [q.prob(n) for n in (0, 3, 50, 400)] == pytest.approx([exact.prob(n) for n in (0, 3, 50, 400)], rel=1e-9)


def test_birth_death_with_a_limit_is_mmck() -> None:
    q, exact = StateDependent(5.0, lambda n: min(n, 4) * 1.0, K=9, seats=4), MMcK(5.0, 1.0, 4, 9)
    assert (q.L, q.Wq, q.blocking, q.lam_eff) == pytest.approx(
        (exact.L, exact.Wq, exact.blocking, exact.lam_eff), rel=1e-9
    )
    assert q.wait_tail(1.0) == pytest.approx(exact.wait_tail(1.0), rel=1e-9)


def test_infinite_servers_have_poisson_numbers_and_exponential_sojourns() -> None:
    q = StateDependent(3.0, lambda n: n * 2.0)
    assert [q.prob(n) for n in range(8)] == pytest.approx(
        [math.exp(-1.5) * 1.5**n / math.factorial(n) for n in range(8)], rel=1e-9
    )
    for t in (0.1, 1.0, 4.0):
        assert q.sojourn_tail(t) == pytest.approx(math.exp(-2 * t), rel=1e-7)


def test_sojourn_of_mm1_sharing_agrees_with_uniformisation_of_the_tagged_chain() -> None:
    lam, size = 0.7, 220
    q = StateDependent(lam, lambda n: 1.0)
    generator = np.zeros((size, size))
    for i in range(size):
        n = i + 1
        generator[i, i] = -(1.0 + (lam if i < size - 1 else 0.0))
        if i < size - 1:
            generator[i, i + 1] = lam
        if i:
            generator[i, i - 1] = (n - 1) / n
    start = (1 - lam) * lam ** np.arange(size)
    step = np.eye(size) + generator / (1 + lam)
    for t in (0.5, 3.0, 15.0):
        v, total, weight = start.copy(), 0.0, math.exp(-(1 + lam) * t)
        for k in range(1, 200):
            total += weight * v.sum()
            v, weight = v @ step, weight * (1 + lam) * t / k
        assert q.sojourn_tail(t) == pytest.approx(total, rel=1e-8)
    # Its mean is the insensitive one.
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.concatenate([[0], np.geomspace(0.1, 300, 25)])
    t = edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2
    assert float((q.sojourn_tail(t) @ weights * np.diff(edges) / 2).sum()) == pytest.approx(1 / 0.3, rel=1e-6)


def test_limited_sharing_between_its_limits() -> None:
    assert LimitedPS(0.6, 1.0, 1).Wq == pytest.approx(MM1(0.6, 1.0).Wq, rel=1e-9)
    assert pytest.approx(MG1(0.6, (1.0, 4.0)).W, rel=1e-12) == LimitedPS(0.6, 1.0, 1, cs2=3.0).W
    assert pytest.approx(PS(0.6, 1.0).W, rel=1e-9) == LimitedPS(0.6, 1.0, 200, cs2=3.0).W
    assert (
        pytest.approx(PS(0.6, 1.0).W, rel=1e-9) == LimitedPS(0.6, 1.0, 5).W
    )  # exponential: the same for any number of seats
    q = LimitedPS(0.6, 1.0, 3)
    assert q.Wq == pytest.approx(0.6**4 / 0.4 / 0.6, rel=1e-9)  # E(N - 3)+ / lam, N geometric
    assert q.wait_tail(2.0) == pytest.approx(0.6**3 * math.exp(-0.4 * 2.0), rel=1e-9)
    seats = LimitedPS(1.5, 1.0, 2, speed=lambda n: float(n))
    assert seats.Wq == pytest.approx(MMc(1.5, 1.0, 2).Wq, rel=1e-9)


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        PS(1.0, 1.0)
    with pytest.raises(UnstableQueueError, match="mu_of_n"):
        StateDependent(2.0, lambda n: 1.0)
    with pytest.raises(UnstableQueueError):
        LimitedPS(2.5, 1.0, 2, speed=lambda n: float(n))
    with pytest.raises(ValueError, match=r"mu_of_n\(1\)"):
        StateDependent(2.0, lambda n: -1.0)
    with pytest.raises(ValueError, match="function"):
        StateDependent(2.0, 3.0)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="mean sojourn"):
        _ = LimitedPS(0.5, 1.0, 3, cs2=0.0).Wq
    with pytest.raises(ValueError, match="cs2"):
        LimitedPS(0.5, 1.0, 3, cs2=0.0, speed=lambda n: 1.0)
