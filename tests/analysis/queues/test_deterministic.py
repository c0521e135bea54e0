"""M/D/1 and M/D/c against series in hundreds of digits and an embedded chain solved here."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from analysis.queues import MD1, MDc, UnstableQueueError


def erlang_series(lam: float, t: float) -> float:
    """Erlang's alternating series for P(W > t) in M/D/1, D = 1, in 500 digits."""
    with mpmath.workdps(500):
        rate, x = mpmath.mpf(lam), mpmath.mpf(t)
        terms = ((-rate * (x - k)) ** k / mpmath.factorial(k) * mpmath.exp(rate * (x - k)) for k in range(int(t) + 1))
        return float(1 - (1 - rate) * mpmath.fsum(terms))


@pytest.mark.parametrize("lam", [0.05, 0.5, 0.95, 0.99])
def test_md1_agrees_with_the_series_in_500_digits(lam: float) -> None:
    q = MD1(lam, 1.0)
    for t in (0.0, 0.4, 1.0, 3.7, 20.2, 99.5):
        assert q.wait_tail(t) == pytest.approx(erlang_series(lam, t), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize(("rho", "c"), [(0.95, 1), (0.99, 1), (0.999, 1), (0.99, 100), (0.5, 100), (0.9, 3)])
def test_tail_is_monotone_and_a_probability_up_to_t_1000(rho: float, c: int) -> None:
    tail = MDc(rho * c, 1.0, c).wait_tail(np.linspace(0.0, 1000.0, 2001))
    assert (np.diff(tail) <= 0).all()
    assert (tail >= 0).all()
    assert (tail <= 1).all()


@pytest.mark.parametrize("rho", [0.1, 0.9, 0.99])
def test_mean_wait_of_the_law_is_pollaczek_khinchine(rho: float) -> None:
    assert MDc(rho, 1.0, 1).Wq == pytest.approx(rho / (2 * (1 - rho)), rel=1e-9)
    assert MD1(rho, 1.0).prob(0) == pytest.approx(1 - rho, rel=1e-9)


def embedded_chain(a: float, c: int, size: int) -> np.ndarray:
    """Stationary number in system of M/D/c, seen every D seconds: a finite chain solved directly."""
    j = np.arange(size)
    poisson = np.exp(j * math.log(a) - a - np.array([math.lgamma(k + 1) for k in j]))
    P = np.zeros((size, size))
    for n in range(size):
        left = max(n - c, 0)
        P[n, left:] = poisson[: size - left]
        P[n, -1] += 1 - P[n].sum()
    A = P.T - np.eye(size)
    A[-1] = 1.0
    return np.linalg.solve(A, np.eye(size)[-1])


@pytest.mark.parametrize(("rho", "c"), [(0.3, 2), (0.8, 5), (0.9, 10)])
def test_mdc_agrees_with_the_embedded_chain(rho: float, c: int) -> None:
    q = MDc(rho * c, 1.0, c)
    p = embedded_chain(rho * c, c, 420)
    n = np.arange(p.size)
    assert q.Lq == pytest.approx(p @ np.maximum(n - c, 0), rel=1e-9)
    assert pytest.approx(p @ n, rel=1e-9) == q.L
    assert q.p_wait == pytest.approx(p[c:].sum(), rel=1e-9)
    assert [q.prob(k) for k in range(30)] == pytest.approx(p[:30], rel=1e-9, abs=1e-15)


def test_mean_is_the_integral_of_the_tail_at_load_99_and_100_servers() -> None:
    q = MDc(99.0, 1.0, 100)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    step = 0.25  # kinks lie at multiples of D
    mean = sum(float(weights @ q.wait_tail((k + 0.5 * (nodes + 1)) * step)) * step / 2 for k in range(160))
    assert mean == pytest.approx(q.Wq, rel=1e-9)
    assert q.wait_tail(q.wait_quantile(0.99)) == pytest.approx(0.01, rel=1e-9)


def test_tail_falls_at_the_decay_rate() -> None:
    q = MD1(0.8, 1.0)
    assert math.log(q.wait_tail(60.0) / q.wait_tail(80.0)) / 20.0 == pytest.approx(q.decay_rate, rel=1e-9)


def test_mdc_with_one_server_is_md1_and_units_scale() -> None:
    assert MDc(0.7, 1.0, 1).wait_quantile(0.95) == pytest.approx(MD1(7.0, 0.1).wait_quantile(0.95) * 10, rel=1e-9)
    assert MD1(0.7, 1.0).sojourn_quantile(0.1) == 1.0
    assert MD1(0.7, 1.0).sojourn_tail(0.999) == 1.0


def test_unstable_and_wrong() -> None:
    with pytest.raises(UnstableQueueError):
        MD1(1.0, 1.0)
    with pytest.raises(UnstableQueueError):
        MDc(4.0, 1.0, 4)
    with pytest.raises(ValueError, match="D = 0"):
        MD1(0.5, 0.0)
