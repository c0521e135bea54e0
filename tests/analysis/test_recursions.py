"""Lindley and Kiefer-Wolfowitz against the loop, against an event list, and against theory."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.queues.erlang import MMc
from analysis.simulation.recursions import kiefer_wolfowitz, lindley


def by_hand(arrivals: np.ndarray, services: np.ndarray) -> list[float]:
    free, waits = 0.0, []
    for arrival, service in zip(arrivals, services, strict=True):
        begins = max(arrival, free)
        waits.append(begins - arrival)
        free = begins + service
    return waits


def by_events(arrivals: np.ndarray, services: np.ndarray, servers: int) -> np.ndarray:
    """An event list with a line and a count of busy servers: no sorted workload vector."""
    events = [(time, 1, i) for i, time in enumerate(arrivals)]
    heapq.heapify(events)
    line: list[int] = []
    busy, begins = 0, np.empty(len(arrivals))
    while events:
        now, kind, i = heapq.heappop(events)
        if kind == 1:
            line.append(i)
        else:
            busy -= 1
        while line and busy < servers:
            j = line.pop(0)
            begins[j] = now
            busy += 1
            heapq.heappush(events, (now + services[j], 0, j))
    return begins - arrivals


gaps = st.lists(st.floats(0, 10), min_size=1, max_size=60)


@given(gaps, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_lindley_is_the_loop(gap_list: list[float], seed: int) -> None:
    arrivals = np.cumsum(gap_list)
    services = np.random.default_rng(seed).exponential(4, size=len(arrivals))
    np.testing.assert_allclose(lindley(arrivals, services), by_hand(arrivals, services), atol=1e-9)


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_kiefer_wolfowitz_is_the_event_list(servers: int) -> None:
    rng = np.random.default_rng(servers)
    arrivals = np.cumsum(rng.exponential(1, size=2000))
    services = rng.lognormal(0, 1, size=2000) * 0.5 * servers
    expected = by_events(arrivals, services, servers)
    np.testing.assert_allclose(kiefer_wolfowitz(arrivals, services, servers), expected, atol=1e-9)


def mm1_mean_wait_error(n: int, rho: float) -> float:
    """Standard error of the mean wait of n requests of M/M/1 in equilibrium, services of mean 1.

    Asymptotic variance of the waiting-time sequence's mean, rho (2 + 5 rho - 4 rho^2 + rho^3) / (1 - rho)^4: Daley,
    J. Appl. Prob. 5 (1968); Whitt, Management Science 35 (1989).
    """
    return float(np.sqrt(rho * (2 + 5 * rho - 4 * rho**2 + rho**3) / (1 - rho) ** 4 / n))


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_mean_wait_of_mm1_and_md1_is_within_the_99_percent_interval(rho: float) -> None:
    n = 2_000_000
    rng = np.random.default_rng(10)
    arrivals = np.cumsum(rng.exponential(1 / rho, size=n))
    band = 2.576 * mm1_mean_wait_error(n, rho)
    assert lindley(arrivals, rng.exponential(1.0, size=n)).mean() == pytest.approx(rho / (1 - rho), abs=band)
    # M/D/1 varies less than M/M/1; its mean is half (Pollaczek-Khinchine)
    assert lindley(arrivals, np.ones(n)).mean() == pytest.approx(rho / (1 - rho) / 2, abs=band)


def test_mean_wait_of_mmc_is_erlangs() -> None:
    n, servers, lam = 400_000, 3, 2.4
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / lam, size=n))
    waits = kiefer_wolfowitz(arrivals, rng.exponential(1.0, size=n), servers)
    # with all servers busy the line is that of M/M/1 with a server c times as fast, whose error is therefore an upper bound
    band = 2.576 * mm1_mean_wait_error(n, lam / servers) / servers
    assert waits.mean() == pytest.approx(MMc(lam, 1.0, servers).Wq, abs=band)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"number 2 comes at 1.0 s after number 1 at 3.0 s"):
        lindley([0.0, 3.0, 1.0], [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="one length"):
        lindley([0.0, 3.0], [1.0])
    with pytest.raises(ValueError, match="negative"):
        lindley([0.0, 3.0], [1.0, -1.0])
    with pytest.raises(ValueError, match="finite"):
        kiefer_wolfowitz([0.0, np.nan], [1.0, 1.0], 2)
    with pytest.raises(ValueError, match="servers is 0"):
        kiefer_wolfowitz([0.0], [1.0], 0)
    assert len(lindley([], [])) == 0
