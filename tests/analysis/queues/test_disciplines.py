"""Priorities and size-based service: conservation laws, order among disciplines, quadrature of the textbook integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from analysis.queues import MD1, MG1, SJF, SRPT, Priority, UnstableQueueError
from analysis.queues.service import Deterministic, erlang, exponential, hyperexponential


def test_cobham_keeps_the_conservation_law() -> None:
    lams, services = [0.1, 0.25, 0.2], [exponential(1.0), erlang(2, 0.8), hyperexponential([0.5, 0.5], [3.0, 0.6])]
    q = Priority(lams, services)
    loads = [x * s.mean for x, s in zip(lams, services, strict=True)]
    residual = sum(x * s.second / 2 for x, s in zip(lams, services, strict=True))
    assert sum(r * w for r, w in zip(loads, q.Wq_by_class, strict=True)) == pytest.approx(
        q.rho * residual / (1 - q.rho)
    )
    assert q.Wq_by_class[0] < q.Wq_by_class[1] < q.Wq_by_class[2]


def test_one_class_is_mg1_and_equal_classes_average_to_it() -> None:
    assert pytest.approx(MG1(0.7, (1.0, 3.0)).W) == Priority([0.7], [(1.0, 3.0)]).W
    assert Priority([0.3, 0.4], [(1.0, 3.0)] * 2).Wq == pytest.approx(MG1(0.7, (1.0, 3.0)).Wq)


def test_preemption_hides_the_lower_classes_and_keeps_mm1_totals() -> None:
    q = Priority([0.3, 0.4], [exponential(1.0)] * 2, preemptive=True)
    assert q.W_by_class[0] == pytest.approx(1 / 0.7)
    assert pytest.approx(0.7 / 0.3) == q.L  # exponential: the total number does not feel the order


def test_sjf_on_two_sizes_is_cobham_with_two_classes() -> None:
    data = np.repeat([0.5, 3.0], [7, 3])
    lam = 0.6
    q = SJF(lam, data)
    two = Priority([lam * 0.7, lam * 0.3], [Deterministic(0.5), Deterministic(3.0)])
    assert q.Wq == pytest.approx(two.Wq, rel=1e-12)
    assert q.wait_of(0.5) == pytest.approx(two.Wq_by_class[0], rel=1e-12)
    assert q.wait_of(3.0) == pytest.approx(two.Wq_by_class[1], rel=1e-12)


@pytest.mark.parametrize("lam", [0.3, 0.8, 0.95])
def test_means_agree_with_quadrature_for_exponential_sizes(lam: float) -> None:
    def load(x: float) -> float:
        return lam * (1 - math.exp(-x) * (1 + x))

    def work(x: float) -> float:
        return 2 - math.exp(-x) * (x * x + 2 * x + 2) + x * x * math.exp(-x)

    options = {"epsrel": 1e-11, "limit": 400}
    sjf = quad(lambda x: math.exp(-x) * lam / (1 - load(x)) ** 2, 0, 60, **options)[0]
    waiting = quad(lambda x: math.exp(-x) * lam / 2 * work(x) / (1 - load(x)) ** 2, 0, 60, **options)[0]
    residence = quad(lambda x: math.exp(-x) / (1 - load(x)), 0, 60, **options)[0]
    for service in (stats.expon(), stats.gamma(1.0 + 1e-9), exponential(1.0)):
        assert SJF(lam, service).Wq == pytest.approx(sjf, rel=2e-6)
        assert pytest.approx(waiting + residence, rel=2e-6) == SRPT(lam, service).W


@pytest.mark.parametrize(
    "service",
    [
        stats.lognorm(s=1.2, scale=0.4),
        stats.uniform(0.2, 1.2),
        erlang(4, 0.7),
        hyperexponential([0.9, 0.1], [2.0, 0.3]),
    ],
    ids=["lognormal", "uniform", "erlang", "hyperexponential"],
)
@pytest.mark.parametrize("rho", [0.2, 0.9])
def test_srpt_beats_sjf_beats_first_come_first_served(service, rho: float) -> None:
    mean = service.mean() if callable(service.mean) else service.mean
    lam = rho / mean
    srpt, sjf, fcfs = SRPT(lam, service).W, SJF(lam, service).W, MG1(lam, service).W
    assert mean < srpt <= sjf <= fcfs


def test_large_data_agrees_with_the_distribution_it_came_from() -> None:
    u = (np.arange(40_000) + 0.5) / 40_000
    data = -np.log1p(-u)
    lam = 0.8 / data.mean()
    assert SJF(lam, data).Wq == pytest.approx(SJF(0.8, exponential(1.0)).Wq, rel=1e-3)
    assert pytest.approx(SRPT(0.8, exponential(1.0)).W, rel=1e-3) == SRPT(lam, data).W


def test_constant_sizes_leave_nothing_to_sort() -> None:
    assert pytest.approx(MD1(0.6, 1.0).W, rel=1e-12) == SJF(0.6, Deterministic(1.0)).W
    assert pytest.approx(MD1(0.6, 1.0).W, rel=1e-12) == SRPT(0.6, Deterministic(1.0)).W


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        Priority([0.6, 0.5], [(1.0, 2.0)] * 2)
    with pytest.raises(ValueError, match="one of each"):
        Priority([0.6], [])
    with pytest.raises(UnstableQueueError):
        SRPT(1.0, exponential(1.0))
    with pytest.raises(NotImplementedError, match="moments"):
        _ = SJF(0.5, (1.0, 2.0)).Wq
    with pytest.raises(NotImplementedError, match="simulate"):
        SJF(0.5, exponential(1.0)).wait_quantile(0.9)
