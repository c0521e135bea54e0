"""Batch arrivals against a truncated Markov chain and M/G/1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.queues import MG1, BatchArrival, UnstableQueueError
from analysis.queues.service import erlang, exponential


def test_groups_of_one_are_mg1() -> None:
    q, exact = BatchArrival(0.7, {1: 1.0}, erlang(3, 1.0)), MG1(0.7, erlang(3, 1.0))
    assert (q.W, q.Lq) == pytest.approx((exact.W, exact.Lq), rel=1e-12)
    for t in (0.0, 0.5, 6.0):
        assert q.wait_tail(t) == pytest.approx(exact.wait_tail(t), rel=1e-9)
        assert q.sojourn_tail(t) == pytest.approx(exact.sojourn_tail(t), rel=1e-9)


def test_exponential_service_agrees_with_the_markov_chain() -> None:
    lam, pmf, mu, size = 0.25, {1: 0.5, 2: 0.2, 4: 0.3}, 1.0, 400
    Q = np.zeros((size, size))
    for n in range(size):
        for k, p in pmf.items():
            Q[n, min(n + k, size - 1)] += lam * p
        if n:
            Q[n, n - 1] += mu
        Q[n, n] -= Q[n].sum()
    A = Q.T.copy()
    A[-1] = 1.0
    p = np.linalg.solve(A, np.eye(size)[-1])
    q = BatchArrival(lam, pmf, exponential(1 / mu))
    assert pytest.approx(p @ np.arange(size), rel=1e-9) == q.L
    # A request finds n in system and j of its own group before it: it waits for n + j services.
    mean = sum(k * x for k, x in pmf.items())
    place = np.array([sum(x for k, x in pmf.items() if k > j) for j in range(4)]) / mean
    ahead = np.convolve(p, place)
    for t in (0.0, 0.7, 5.0, 20.0):
        services = np.arange(1, ahead.size)
        tail = float(ahead[1:] @ stats.poisson.cdf(services - 1, mu * t))
        assert q.wait_tail(t) == pytest.approx(tail, rel=1e-9)
        tail = float(ahead @ stats.poisson.cdf(np.arange(ahead.size), mu * t))
        assert q.sojourn_tail(t) == pytest.approx(tail, rel=1e-9)


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        BatchArrival(0.5, {2: 1.0}, (1.0, 2.0))
    with pytest.raises(ValueError, match="add up"):
        BatchArrival(0.1, {1: 0.5, 2: 0.4}, (1.0, 2.0))
    with pytest.raises(ValueError, match="group size"):
        BatchArrival(0.1, {0: 1.0}, (1.0, 2.0))
    with pytest.raises(NotImplementedError, match="phase-type"):
        BatchArrival(0.1, {1: 1.0}, (1.0, 2.0)).wait_tail(1.0)
