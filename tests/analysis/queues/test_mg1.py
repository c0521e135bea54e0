"""M/G/1: special cases with closed forms, a Lindley recursion's exact law by convolution, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.queues import MD1, MG1, MM1, UnstableQueueError
from analysis.queues.inversion import euler
from analysis.queues.mg1 import Inverted
from analysis.queues.service import Deterministic, as_service, erlang, exponential, hyperexponential, two_moment

TIMES = (0.0, 0.05, 0.7, 2.0, 9.0, 30.0)


def test_exponential_service_is_mm1_in_every_form() -> None:
    exact = MM1(0.6, 1.0)
    for service in (exponential(1.0), stats.expon(), ([1.0], [[-1.0]])):
        q = MG1(0.6, service)
        assert (q.W, q.L, q.Wq, q.Lq) == pytest.approx((exact.W, exact.L, exact.Wq, exact.Lq), rel=1e-12)
        for t in TIMES:
            assert q.wait_tail(t) == pytest.approx(exact.wait_tail(t), rel=1e-9)
            assert q.sojourn_tail(t) == pytest.approx(exact.sojourn_tail(t), rel=1e-9)
        assert q.decay_rate == pytest.approx(0.4, rel=1e-9)
        assert q.var_wait == pytest.approx((2 - 0.6) * 0.6 / 0.4**2, rel=1e-12)


def test_hyperexponential_service_against_its_partial_fractions_by_hand() -> None:
    # W*(s) = (1-rho) s / (s - lam + lam B*(s)): two poles, found here as roots of a quadratic.
    p, r1, r2, lam = 0.4, 3.0, 0.8, 0.7
    q = MG1(lam, hyperexponential([p, 1 - p], [r1, r2]))
    rho = q.rho
    # (s + r1)(s + r2) - lam (s + r1 (1-p) + r2 p) = 0
    b, c = r1 + r2 - lam, r1 * r2 - lam * (r1 * (1 - p) + r2 * p)
    roots = [(-b + sign * math.sqrt(b * b - 4 * c)) / 2 for sign in (1, -1)]
    for t in TIMES:
        tail = 0.0
        for i, s in enumerate(roots):
            other = roots[1 - i]
            tail += -(1 - rho) * (s + r1) * (s + r2) / (s - other) * math.exp(s * t) / s
        assert q.wait_tail(t) == pytest.approx(tail, rel=1e-9)
    assert q.decay_rate == pytest.approx(-roots[0], rel=1e-9)


@pytest.mark.parametrize("service", [erlang(3, 1.0), two_moment(1.0, 0.3), two_moment(0.5, 4.0)])
@pytest.mark.parametrize("rho", [0.2, 0.9])
def test_phase_type_agrees_with_lattice_and_with_euler(service, rho: float) -> None:
    lam = rho / service.mean
    q, inverted = MG1(lam, service), Inverted(lam, service)
    for t in (0.3, 1.0, 5.0, 20.0):
        exact = q.wait_tail(t)
        assert inverted.wait(t) == pytest.approx(exact, abs=2e-7)
        assert euler(inverted.transform, t) == pytest.approx(exact, abs=3e-8)
        assert inverted.sojourn(t) == pytest.approx(q.sojourn_tail(t), abs=2e-6)


def test_lattice_agrees_with_md1_although_the_law_has_kinks() -> None:
    exact, lattice = MD1(0.8, 1.0), Inverted(0.8, Deterministic(1.0), tolerance=1e-3)
    for t in (0.3, 2.5, 17.3):
        assert lattice.wait(t) == pytest.approx(exact.wait_tail(t), abs=2e-6)
    assert lattice.wait(1.0) == pytest.approx(exact.wait_tail(1.0), abs=3e-4)  # at the kink itself


@pytest.mark.parametrize(
    "frozen",
    [stats.lognorm(s=0.8, scale=0.5), stats.gamma(0.3, scale=2.0), stats.uniform(0.5, 1.0), stats.weibull_min(0.6)],
    ids=["lognormal", "gamma", "uniform", "weibull"],
)
def test_mean_wait_is_the_integral_of_the_numerical_tail(frozen) -> None:
    q = MG1(0.7 / frozen.mean(), frozen)
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 400.0, 90)]) * q.W
    nodes, weights = np.polynomial.legendre.leggauss(6)
    widths = np.diff(edges)
    t = edges[:-1, None] + widths[:, None] * 0.5 * (nodes + 1)
    mean = float((q.wait_tail(t) @ weights * widths / 2).sum())
    second = float(((2 * t * q.wait_tail(t)) @ weights * widths / 2).sum())
    assert mean == pytest.approx(q.Wq, rel=2e-6)
    assert second - mean**2 == pytest.approx(q.var_wait, rel=2e-4)


def test_data_agrees_with_an_exact_mixture_and_with_constant_times() -> None:
    # Service 1 or 2, equally likely; up to the first service time the wait is known: (1 - rho) exp(lam t).
    q = MG1(0.4, [1.0, 2.0])
    for t in (0.2, 0.9):
        assert q.wait_tail(t) == pytest.approx(1 - 0.4 * math.exp(0.4 * t), abs=1e-6)
    assert MG1(0.5, [1.0, 1.0, 1.0]).wait_quantile(0.99) == pytest.approx(MD1(0.5, 1.0).wait_quantile(0.99), rel=1e-5)
    big = np.random.default_rng(3).exponential(size=50_000)
    q = MG1(0.5 / big.mean(), big)
    assert q.Wq == pytest.approx(q.lam * (big**2).mean() / (2 * 0.5), rel=1e-12)
    assert q.wait_quantile(0.9) == pytest.approx(MM1(0.5, 1.0).wait_quantile(0.9), rel=0.1)


def test_moments_give_means_and_say_why_there_is_no_tail() -> None:
    q = MG1(0.5, (1.0, 3.0))
    assert q.Wq == 1.5
    with pytest.raises(NotImplementedError, match="whole service distribution"):
        q.wait_tail(1.0)
    with pytest.raises(NotImplementedError, match="ES3"):
        _ = q.var_wait
    assert MG1(0.5, {"ES": 1.0, "scv": 2.0}).Wq == 1.5
    assert MG1(0.5, (1.0, 2.0, 6.0)).var_wait == pytest.approx(3.0)


def test_heavy_tails_have_no_decay_rate_and_light_ones_the_lundberg_root() -> None:
    with pytest.raises(NotImplementedError, match="lognorm"):
        _ = MG1(0.5, stats.lognorm(s=1.0, scale=0.5)).decay_rate
    q = MG1(0.8, stats.uniform(0.0, 2.0))
    s = q.decay_rate
    assert 0.8 * ((math.exp(2 * s) - 1) / (2 * s) - 1) == pytest.approx(s, rel=1e-9)
    assert math.log(q.wait_tail(20.0) / q.wait_tail(30.0)) / 10 == pytest.approx(s, rel=1e-4)


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ((1.0, 0.5), "no distribution"),
        ((-1.0, 2.0), "above 0"),
        ([1.0, math.nan], "NaN"),
        ([-1.0, 2.0], "negative"),
        ([1.0], "at least 2"),
        ([0.0, 0.0], "zeros"),
        (([0.5, 0.4], [[-1.0, 0.0], [0.0, -1.0]]), "sum to 1"),
        (([1.0, 0.0], [[-1.0, 1.0], [1.0, -1.0]]), "singular"),
        (([1.0], [[1.0]]), "row sums"),
        (stats.norm(1.0, 1.0), "reaches down"),
        (stats.pareto(1.5), "variance"),
        ("exponential", "give a tuple"),
        (3.0, "give a tuple"),
        ({"mean": 1.0}, "keys"),
    ],
)
def test_wrong_service_times_are_refused(service, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MG1(0.1, service)


def test_unstable() -> None:
    with pytest.raises(UnstableQueueError, match=r"1 / E\[S\]"):
        MG1(1.0, (1.0, 2.0))
    assert as_service(exponential(1.0)).mean == 1.0
