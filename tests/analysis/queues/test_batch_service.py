"""Batch service against a chain solved another way, Inoue's closed form, M/D/1 and a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.queues import MD1, BatchService, UnstableQueueError


def by_power_iteration(lam: float, alpha: float, tau0: float, cap: int | None, size: int) -> tuple[float, float]:
    """(W, Wq) from the chain of numbers present, iterated, and time averages over a cycle with Little's law."""
    present = np.arange(1, size + 1)
    batch = present if cap is None else np.minimum(present, cap)
    time = alpha * batch + tau0
    P = np.zeros((size, size))
    for i in range(size):
        left = present[i] - batch[i]
        p = stats.poisson.pmf(np.arange(size - left + 1), lam * time[i])
        for k, x in enumerate(p):
            P[i, max(left + k, 1) - 1] += x
    law = np.full(size, 1 / size)
    for _ in range(12):  # squaring: 4096 steps
        P = P @ P
        P /= P.sum(axis=1, keepdims=True)
    law = law @ P
    left = present - batch
    empty = np.array([stats.poisson.pmf(0, lam * t) if n == 0 else 0.0 for n, t in zip(left, time, strict=True)])
    cycle = law @ (time + empty / lam)
    L = law @ (present * time + lam * time**2 / 2) / cycle
    Lq = law @ (left * time + lam * time**2 / 2) / cycle
    return L / lam, Lq / lam


@pytest.mark.parametrize(
    ("lam", "alpha", "tau0", "cap"),
    [(5.0, 0.05, 0.2, None), (15.0, 0.05, 0.1, None), (0.5, 0.3, 1.0, None), (6.0, 0.05, 0.2, 4), (2.0, 0.0, 0.9, 2)],
)
def test_means_agree_with_the_chain_iterated(lam: float, alpha: float, tau0: float, cap: int | None) -> None:
    q = BatchService(lam, alpha, tau0, cap)
    W, Wq = by_power_iteration(lam, alpha, tau0, cap, 260)
    assert (q.W, q.Wq) == pytest.approx((W, Wq), rel=1e-9)


def test_inoues_bound_lies_above_and_is_tight_once_the_server_is_never_idle() -> None:
    for lam in (0.5, 3.0, 8.0, 18.0):
        q = BatchService(lam, 0.05, 0.3)
        assert q.mean_bound * (1 + 1e-12) >= q.W
    q = BatchService(18.0, 0.05, 1.0)
    assert q.busy == pytest.approx(1.0, abs=1e-6)
    assert pytest.approx(q.mean_bound, rel=1e-6) == q.W


def test_one_at_a_time_is_md1_in_every_respect() -> None:
    q, exact = BatchService(0.7, 0.4, 0.6, cap=1), MD1(0.7, 1.0)
    assert (q.rho, q.W, q.Wq, q.L) == pytest.approx((exact.rho, exact.W, exact.Wq, exact.L), rel=1e-9)
    for t in (0.0, 0.3, 1.0, 4.6, 12.0):
        assert q.wait_tail(t) == pytest.approx(exact.wait_tail(t), rel=1e-8)
    assert q.busy == pytest.approx(0.7, rel=1e-9)


def test_a_cap_never_reached_changes_nothing() -> None:
    free, capped = BatchService(5.0, 0.05, 0.2), BatchService(5.0, 0.05, 0.2, cap=80)
    assert pytest.approx(free.W, rel=1e-9) == capped.W
    assert capped.wait_quantile(0.95) == pytest.approx(free.wait_quantile(0.95), rel=1e-7)


@pytest.mark.parametrize("cap", [None, 3])
def test_tails_integrate_to_the_means(cap: int | None) -> None:
    q = BatchService(4.0, 0.1, 0.3, cap)
    step = 0.01
    t = (np.arange(800) + 0.5) * step
    assert float(q.wait_tail(t).sum()) * step == pytest.approx(q.Wq, rel=1e-3)
    if cap is None:
        assert float(q.sojourn_tail(t).sum()) * step == pytest.approx(q.W, rel=1e-3)


def simulate(lam: float, alpha: float, tau0: float, cap: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / lam, n))
    waits, sojourns = np.empty(n), np.empty(n)
    free, i = 0.0, 0
    while i < n:
        start = max(free, arrivals[i])
        j = min(int(np.searchsorted(arrivals, start, side="right")), i + cap)
        free = start + alpha * (j - i) + tau0
        waits[i:j], sojourns[i:j] = start - arrivals[i:j], free - arrivals[i:j]
        i = j
    return waits, sojourns


@pytest.mark.parametrize("cap", [None, 4])
def test_laws_lie_inside_the_interval_of_a_simulation(cap: int | None) -> None:
    q = BatchService(6.0, 0.05, 0.2, cap)
    at = q.wait_quantile(0.9)
    shares, means = [], []
    for seed in range(12):
        waits, sojourns = simulate(6.0, 0.05, 0.2, cap or 10**9, 6000, seed)
        shares.append((waits[500:] > at).mean())
        means.append(sojourns[500:].mean())
    for values, truth in ((shares, 0.1), (means, q.W)):
        half = stats.t.ppf(0.9995, 11) * np.std(values, ddof=1) / np.sqrt(12)
        assert abs(np.mean(values) - truth) < half


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        BatchService(20.0, 0.05, 0.1)
    with pytest.raises(UnstableQueueError, match="cap"):
        BatchService(10.0, 0.05, 0.2, cap=2)
    with pytest.raises(ValueError, match="alpha = tau0 = 0"):
        BatchService(1.0, 0.0, 0.0)
    with pytest.raises(NotImplementedError, match="later"):
        BatchService(1.0, 0.1, 0.1, cap=2).sojourn_quantile(0.5)
    with pytest.raises(NotImplementedError, match="without a cap"):
        _ = BatchService(1.0, 0.1, 0.1, cap=2).mean_bound
