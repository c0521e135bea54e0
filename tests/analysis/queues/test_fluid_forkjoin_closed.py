"""Fluid overload by hand, fork-join against its two-dimensional chain, closed loops against product form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

from analysis.queues import MM1, ClosedNetwork, ClosedStation, Fluid, ForkJoin, UnstableQueueError


def test_a_minute_at_120_percent_takes_a_minute_at_80_to_recover() -> None:
    f = Fluid([(60.0, 12.0), (100.0, 8.0)], mu=10.0)
    assert (f.peak, f.peak_time, f.recovery_time, f.empty_at, f.longest_delay) == (120.0, 60.0, 60.0, 120.0, 12.0)
    assert f.backlog([0.0, 30.0, 60.0, 90.0, 120.0, 500.0]) == pytest.approx([0, 60, 120, 60, 0, 0])
    assert f.delay(90.0) == pytest.approx(6.0)


def test_a_second_wave_before_the_first_is_gone() -> None:
    f = Fluid([(10.0, 20.0), (5.0, 0.0), (10.0, 15.0), (40.0, 5.0), (7.0, 10.0), (1.0, 5.0)], mu=10.0, start=3.0)
    # 3 -> 103 -> 53 -> 103, then 5 a second less: empty 20.6 s later, and stays empty at rate = mu.
    assert f.peak == 103.0
    assert f.empty_at == pytest.approx(25.0 + 20.6)
    assert f.recovery_time == pytest.approx(20.6)
    t = np.linspace(0, 80, 8001)
    b, rates = 3.0, [(10.0, 20.0), (15.0, 0.0), (25.0, 15.0), (65.0, 5.0), (72.0, 10.0), (math.inf, 5.0)]
    stepped = [b]
    for x in t[:-1]:
        rate = next(r for end, r in rates if x < end - 1e-9)
        b = max(b + (rate - 10.0) * 0.01, 0.0)
        stepped.append(b)
    assert np.abs(f.backlog(t) - np.array(stepped)).max() < 1e-6


def test_overload_without_end_and_no_overload() -> None:
    assert Fluid([(1.0, 12.0)], mu=10.0).recovery_time == math.inf
    assert Fluid([(1.0, 12.0)], mu=10.0).peak == math.inf
    assert Fluid([(5.0, 12.0), (1.0, 10.0)], mu=10.0).empty_at == math.inf
    calm = Fluid([(5.0, 8.0)], mu=10.0)
    assert (calm.peak, calm.recovery_time, calm.backlog(3.0)) == (0.0, 0.0, 0.0)
    for wrong in ([], [(0.0, 1.0)], [(math.inf, 1.0), (1.0, 1.0)], [(1.0, -1.0)]):
        with pytest.raises(ValueError, match=r"profile"):
            Fluid(wrong, mu=1.0)


def fork_join_by_chain(lam: float, n: int, size: int) -> float:
    """Mean sojourn of n coupled M/M/1 (mu = 1): requests outstanding = the longest of the queues."""
    states = list(itertools.product(range(size), repeat=n))
    index = {s: i for i, s in enumerate(states)}
    Q = lil_matrix((len(states), len(states)))
    for s, i in index.items():
        up = tuple(min(x + 1, size - 1) for x in s)
        moves = [(up, lam)] + [((*s[:k], s[k] - 1, *s[k + 1 :]), 1.0) for k in range(n) if s[k]]
        for to, rate in moves:
            Q[index[to], i] += rate
            Q[i, i] -= rate
    Q[0, :] = 1.0
    b = np.zeros(len(states))
    b[0] = 1.0
    p = spsolve(Q.tocsc(), b)
    return float(p @ np.array([max(s) for s in states])) / lam


@pytest.mark.parametrize("lam", [0.2, 0.5])
def test_two_way_fork_join_is_exact(lam: float) -> None:
    q = ForkJoin(lam, 1.0, 2)
    assert q.kind == "exact"
    assert pytest.approx(fork_join_by_chain(lam, 2, 40), rel=1e-7) == q.W


def test_three_way_fork_join_is_within_five_percent_and_its_bounds() -> None:
    exact = fork_join_by_chain(0.3, 3, 11)
    q = ForkJoin(0.3, 1.0, 3)
    assert q.kind == "approximation"
    assert pytest.approx(exact, rel=0.05) == q.W
    assert q.W_lower <= exact <= q.W_upper


def test_fork_join_of_one_is_mm1_and_bounds_order() -> None:
    assert ForkJoin(0.6, 1.0, 1).sojourn_quantile(0.9) == pytest.approx(MM1(0.6, 1.0).sojourn_quantile(0.9), rel=1e-9)
    for n in (2, 8, 32):
        q = ForkJoin(0.8, 1.0, n)
        assert q.W_lower <= q.W <= q.W_upper
        assert q.sojourn_tail_bound(q.sojourn_quantile_bound(0.99)) == pytest.approx(0.01, rel=1e-9)
    with pytest.raises(NotImplementedError, match="n queues"):
        _ = ForkJoin(0.5, 1.0, 2).Wq
    with pytest.raises(UnstableQueueError):
        ForkJoin(1.0, 1.0, 2)


def test_mva_agrees_with_product_form_enumerated() -> None:
    N, Z, D = 7, 3.0, (0.9, 0.4, 0.7)

    def constant(n: int) -> float:
        total = 0.0
        for state in itertools.product(range(n + 1), repeat=3):
            thinking = n - sum(state)
            if thinking >= 0:
                total += Z**thinking / math.factorial(thinking) * math.prod(d**k for d, k in zip(D, state, strict=True))
        return total

    net = ClosedNetwork(N, Z, D)
    assert pytest.approx(constant(N - 1) / constant(N), rel=1e-12) == net.X
    assert net.throughputs[2] == pytest.approx(constant(2) / constant(3), rel=1e-12)
    assert pytest.approx(N, rel=1e-12) == net.X * (net.R + Z)
    assert sum(net.Q.values()) + net.X * Z == pytest.approx(N, rel=1e-12)
    assert net.bounds[0] <= net.X <= net.bounds[1]
    assert net.bottleneck == "station 0"
    assert net.utilization["station 1"] == pytest.approx(net.X * 0.4)


def test_a_station_of_constant_rate_is_the_network_of_one() -> None:
    for N in (1, 4, 60):
        station, net = ClosedStation(N, 5.0, lambda n: 0.5), ClosedNetwork(N, 5.0, {"engine": 2.0})
        assert pytest.approx((net.X, net.R, net.Q["engine"]), rel=1e-9) == (station.X, station.R, station.L)
    many = ClosedStation(6, 5.0, lambda n: n * 0.5)  # nobody slows anybody: R is one service
    assert pytest.approx(2.0, rel=1e-12) == many.R
    seats = ClosedStation(6, 1e-6, lambda n: min(n, 2) * 1.0, seats=2)
    assert pytest.approx(2.0, rel=1e-4) == seats.X
    assert seats.Wq + 1.0 == pytest.approx(seats.R, rel=1e-9)


def test_closed_refusals() -> None:
    for wrong in (
        lambda: ClosedNetwork(0, 1.0, [1.0]),
        lambda: ClosedNetwork(1, -1.0, [1.0]),
        lambda: ClosedNetwork(1, 1.0, []),
    ):
        with pytest.raises(ValueError, match="give"):
            wrong()
    with pytest.raises(ValueError, match="demand"):
        ClosedNetwork(2, 1.0, {"gpu": -1.0})
    with pytest.raises(ValueError, match="mu_of_n"):
        _ = ClosedStation(2, 1.0, lambda n: 0.0).X
