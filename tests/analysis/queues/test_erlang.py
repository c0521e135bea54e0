"""Erlang's formulas against mpmath sums and birth-death chains built here."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from analysis.queues import MM1, ErlangA, MMc, MMcK, UnstableQueueError, erlang_b, erlang_c


def chain(lam: float, death: list[float]) -> np.ndarray:
    """Stationary law of a birth-death chain with death rates death[0] (out of state 1), death[1], ..."""
    p = [mpmath.mpf(1)]
    for d in death:
        p.append(p[-1] * mpmath.mpf(lam) / mpmath.mpf(d))
    total = mpmath.fsum(p)
    return np.array([float(x / total) for x in p])


def uniformised_tail(generator: np.ndarray, start: np.ndarray, t: float) -> float:
    """start exp(generator t) 1 by uniformisation: positive terms only."""
    rate = float(-np.diag(generator).min())
    step = np.eye(len(start)) + generator / rate
    total, v, weight = 0.0, start.copy(), math.exp(-rate * t)
    for k in range(1, int(rate * t + 12 * math.sqrt(rate * t) + 60)):
        total += weight * v.sum()
        v, weight = v @ step, weight * rate * t / k
    return total


@pytest.mark.parametrize(("c", "a"), [(1, 0.3), (7, 5.0), (100, 99.0), (1000, 990.0), (10_000, 9_990.0), (50, 400.0)])
def test_erlang_b_and_c_agree_with_fifty_digits(c: int, a: float) -> None:
    with mpmath.workdps(50):
        terms, term = [mpmath.mpf(1)], mpmath.mpf(1)
        for k in range(1, c + 1):
            term *= mpmath.mpf(a) / k
            terms.append(term)
        b = terms[-1] / mpmath.fsum(terms)
        assert erlang_b(c, a) == pytest.approx(float(b), rel=1e-11)
        if a < c:
            assert erlang_c(c, a) == pytest.approx(float(b / (1 - mpmath.mpf(a) / c * (1 - b))), rel=1e-11)


def test_erlang_c_of_one_server_is_the_load() -> None:
    for rho in (0.01, 0.5, 0.99):
        assert erlang_c(1, rho) == pytest.approx(rho, rel=1e-14)


@pytest.mark.parametrize(("lam", "mu", "c"), [(0.5, 1.0, 1), (3.4, 1.0, 4), (19.0, 2.0, 10)])
def test_mmc_agrees_with_its_birth_death_chain(lam: float, mu: float, c: int) -> None:
    q = MMc(lam, mu, c)
    p = chain(lam, [min(n, c) * mu for n in range(1, 1500)])
    n = np.arange(p.size)
    assert pytest.approx(p @ n, rel=1e-9) == q.L
    assert q.Lq == pytest.approx(p @ np.maximum(n - c, 0), rel=1e-9)
    assert q.p_wait == pytest.approx(p[c:].sum(), rel=1e-9)
    assert [q.prob(k) for k in range(40)] == pytest.approx(p[:40], rel=1e-9)


def test_mmc_sojourn_agrees_with_an_absorbing_chain() -> None:
    # A tagged request with k ahead of it (c busy until it starts), then its own service.
    lam, mu, c, size = 2.2, 1.0, 3, 250
    p = chain(lam, [min(n, c) * mu for n in range(1, 1500)])
    generator = np.zeros((size, size))
    generator[0, 0] = -mu
    for k in range(1, size):
        generator[k, k], generator[k, k - 1] = -c * mu, c * mu
    start = np.zeros(size)
    start[0] = p[:c].sum()
    start[1:] = p[c : c + size - 1]
    q = MMc(lam, mu, c)
    for t in (0.1, 1.0, 4.0):
        assert q.sojourn_tail(t) == pytest.approx(uniformised_tail(generator, start, t), rel=1e-9)


def test_mmc_sojourn_where_both_exponentials_coincide() -> None:
    q, near = MMc(1.0, 1.0, 2), MMc(1.0 + 1e-9, 1.0, 2)
    assert q.sojourn_tail(2.0) == pytest.approx(near.sojourn_tail(2.0), rel=1e-7)


def test_mm1_closed_forms() -> None:
    q = MM1(0.8, 1.0)
    assert (q.L, q.W, q.Lq, q.Wq, q.rho) == pytest.approx((4.0, 5.0, 3.2, 4.0, 0.8), rel=1e-12)
    assert q.sojourn_quantile(0.99) == pytest.approx(-math.log(0.01) / 0.2, rel=1e-12)
    assert q.wait_quantile(0.1) == 0.0
    assert MMc(0.8, 1.0, 1).sojourn_quantile(0.99) == pytest.approx(q.sojourn_quantile(0.99), rel=1e-9)


@pytest.mark.parametrize(("lam", "c", "K"), [(0.7, 1, 5), (1.0, 1, 1), (5.0, 3, 3), (2.9, 3, 20), (9.0, 3, 40)])
def test_mmck_agrees_with_its_birth_death_chain(lam: float, c: int, K: int) -> None:
    q = MMcK(lam, 1.0, c, K)
    p = chain(lam, [float(min(n, c)) for n in range(1, K + 1)])
    n = np.arange(K + 1)
    assert pytest.approx(p @ n, rel=1e-9) == q.L
    assert q.Lq == pytest.approx(p @ np.maximum(n - c, 0), rel=1e-9, abs=1e-12)
    assert q.blocking == pytest.approx(p[-1], rel=1e-9)
    size = K - c + 1
    generator = np.diag([-1.0] + [-float(c)] * (size - 1)) + np.diag([float(c)] * (size - 1), k=-1)
    found = p[:-1] / p[:-1].sum()
    start = np.concatenate([[found[:c].sum()], found[c:]])
    for t in (0.2, 1.0, 3.0):
        assert q.sojourn_tail(t) == pytest.approx(uniformised_tail(generator, start, t), rel=1e-9)
        waiting = uniformised_tail(generator[1:, 1:], start[1:], t) if size > 1 else 0.0
        assert q.wait_tail(t) == pytest.approx(waiting, rel=1e-9, abs=1e-12)


def test_mmck_without_room_to_wait_is_erlang_b_and_with_much_room_is_mmc() -> None:
    assert MMcK(3.0, 1.0, 4, 4).blocking == pytest.approx(erlang_b(4, 3.0), rel=1e-12)
    wide, open_ended = MMcK(3.0, 1.0, 4, 400), MMc(3.0, 1.0, 4)
    assert pytest.approx(open_ended.W, rel=1e-12) == wide.W
    assert wide.wait_quantile(0.99) == pytest.approx(open_ended.wait_quantile(0.99), rel=1e-9)
    assert MMcK(4.0, 1.0, 4, 400).rho == 1.0  # a steady state at every load


@pytest.mark.parametrize(
    ("lam", "c", "theta"), [(2.0, 2, 0.5), (0.5, 2, 0.1), (9.0, 4, 0.7), (40.0, 50, 2.0), (60.0, 50, 0.05)]
)
def test_erlang_a_agrees_with_its_birth_death_chain(lam: float, c: int, theta: float) -> None:
    q = ErlangA(lam, 1.0, c, theta)
    size = 1200
    p = chain(lam, [min(n, c) + max(n - c, 0) * theta for n in range(1, size)])
    waiting = np.maximum(np.arange(size) - c, 0)
    assert q.p_wait == pytest.approx(p[c:].sum(), rel=1e-9)
    assert q.Lq == pytest.approx(p @ waiting, rel=1e-9)
    assert pytest.approx(p @ np.arange(size), rel=1e-9) == q.L
    assert q.abandonment == pytest.approx(theta * (p @ waiting) / lam, rel=1e-9)


def test_erlang_a_waits_agree_with_an_absorbing_chain() -> None:
    lam, mu, c, theta, size = 5.0, 1.0, 4, 0.6, 120
    p = chain(lam, [min(n, c) * mu + max(n - c, 0) * theta for n in range(1, 400)])
    # A request that finds c + k - 1 in system waits for k departures: k - 1 may still abandon ahead of it.
    full = np.zeros((size, size))
    for k in range(size):
        rate = c * mu + k * theta
        full[k, k] = -rate
        if k:
            full[k, k - 1] = rate
    offered, start = full, p[c : c + size]
    actual = full - theta * np.eye(size)
    q = ErlangA(lam, mu, c, theta)
    for t in (0.1, 0.7, 2.5):
        assert q.offered_wait_tail(t) == pytest.approx(uniformised_tail(offered, start, t), rel=1e-9)
        assert q.wait_tail(t) == pytest.approx(uniformised_tail(actual, start, t), rel=1e-9)
    # Sojourn: in queue (may leave for good), then one service.
    both = np.zeros((size + 1, size + 1))
    both[1:, 1:] = actual
    both[1, 0] = c * mu
    both[0, 0] = -mu
    begin = np.concatenate([[p[:c].sum()], start])
    for t in (0.1, 0.7, 2.5):
        assert q.sojourn_tail(t) == pytest.approx(uniformised_tail(both, begin, t), rel=1e-8)


def test_erlang_a_is_stable_at_ten_thousand_servers_and_tends_to_erlang_c() -> None:
    patient = ErlangA(9_900.0, 1.0, 10_000, 1e-9)
    exact = MMc(9_900.0, 1.0, 10_000)
    assert patient.p_wait == pytest.approx(exact.p_wait, rel=1e-5)
    assert patient.Wq == pytest.approx(exact.Wq, rel=1e-5)
    assert patient.wait_quantile(0.999) == pytest.approx(exact.wait_quantile(0.999), rel=1e-4)
    crowded = ErlangA(12_000.0, 1.0, 10_000, 0.5)  # fluid limit: 1 - 1/rho leave
    assert crowded.abandonment == pytest.approx(1 - 10_000 / 12_000, rel=1e-6)
    same_rates = ErlangA(9_900.0, 1.0, 10_000, 1.0)  # theta = mu: M/M/inf, Poisson number in system
    assert pytest.approx(9_900.0, rel=1e-9) == same_rates.L


def test_wrong_parameters_are_refused_with_a_remedy() -> None:
    with pytest.raises(UnstableQueueError, match="add servers"):
        MMc(2.0, 1.0, 2)
    with pytest.raises(UnstableQueueError):
        MM1(1.0, 1.0)
    for wrong in (
        lambda: MM1(-1.0, 1.0),
        lambda: MM1(1.0, math.nan),
        lambda: MMc(1.0, 1.0, 0),
        lambda: MMc(1.0, 1.0, 2.5),
    ):
        with pytest.raises(ValueError, match="give a"):
            wrong()
    with pytest.raises(ValueError, match="give a number"):
        MMc(1.0, 1.0, "2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="K >= c"):
        MMcK(1.0, 1.0, 3, 2)
    with pytest.raises(ValueError, match="strictly between"):
        MM1(0.5, 1.0).wait_quantile(1.0)
    with pytest.raises(ValueError, match="strictly between"):
        MM1(0.5, 1.0).sojourn_quantile(0.0)
    with pytest.raises(ValueError, match="give a"):
        erlang_b(-1, 1.0)
