"""Two-moment formulas: exact where theory says so, bounds above the exact value, approximations near it."""

from __future__ import annotations

import pytest

from analysis.queues import GG1, GIM1, MD1, MG1, GGc, MDc, MMc, UnstableQueueError
from analysis.queues.service import Deterministic, erlang, two_moment


@pytest.mark.parametrize("method", ["klb", "marchal", "heavy-traffic"])
@pytest.mark.parametrize("cs2", [0.0, 0.5, 1.0, 4.0])
def test_approximations_are_exact_for_poisson_arrivals(method: str, cs2: float) -> None:
    q = GG1(0.7, 1.0, 1.0, cs2, method=method)
    assert q.kind == "approximation"
    assert q.Wq == pytest.approx(MG1(0.7, (1.0, 1.0 + cs2)).Wq, rel=1e-12)


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scv", [0.25, 0.5, 1.0, 3.0])
def test_bounds_lie_above_the_exact_wait_of_gim1_and_in_order(rho: float, scv: float) -> None:
    exact = GIM1(two_moment(1 / rho, scv), 1.0).Wq
    kingman, daley = (GG1(rho, 1.0, scv, 1.0, method=m) for m in ("kingman", "daley"))
    assert kingman.kind == daley.kind == "upper bound"
    assert exact <= daley.Wq * (1 + 1e-12)
    assert daley.Wq <= kingman.Wq * (1 + 1e-12)
    assert MG1(rho, (1.0, 1.0 + scv)).Wq <= GG1(rho, 1.0, 1.0, scv, method="kingman").Wq


@pytest.mark.parametrize("method", ["klb", "marchal", "heavy-traffic", "kingman", "daley"])
def test_all_agree_in_heavy_traffic(method: str) -> None:
    exact = GIM1(erlang(3, 1 / 0.9995), 1.0).Wq
    assert GG1(0.9995, 1.0, 1 / 3, 1.0, method=method).Wq == pytest.approx(exact, rel=2e-3)


def test_klb_and_marchal_are_near_gim1() -> None:
    exact = GIM1(erlang(2, 1 / 0.8), 1.0).Wq
    assert GG1(0.8, 1.0, 0.5, 1.0).Wq == pytest.approx(exact, rel=0.03)
    assert GG1(0.8, 1.0, 0.5, 1.0, method="marchal").Wq == pytest.approx(exact, rel=0.1)
    assert GG1(0.5, 1.0, 0.0, 0.0).Wq == 0.0  # D/D/1 never waits
    exact = GIM1(Deterministic(1 / 0.9), 1.0).Wq
    assert GG1(0.9, 1.0, 0.0, 1.0).Wq == pytest.approx(exact, rel=0.02)


def test_many_servers() -> None:
    exact = MMc(9.0, 1.0, 10)
    assert GGc(9.0, 1.0, 10, 1.0, 1.0).Wq == pytest.approx(exact.Wq, rel=1e-12)
    assert GGc(9.0, 1.0, 10, 1.0, 1.0, method="klb").Wq == pytest.approx(exact.Wq, rel=1e-12)
    assert GGc(9.0, 1.0, 10, 1.0, 1.0, method="sakasegawa").Wq == pytest.approx(exact.Wq, rel=0.05)
    for rho in (0.3, 0.9):
        constant = MDc(rho * 5, 1.0, 5)
        bound = GGc(rho * 5, 1.0, 5, 1.0, 0.0, method="kingman")
        assert bound.kind == "upper bound"
        assert constant.Wq <= bound.Wq
        assert MMc(rho * 5, 1.0, 5).Wq <= GGc(rho * 5, 1.0, 5, 1.0, 1.0, method="kingman").Wq
    assert GGc(0.7, 1.0, 1, 1.0, 0.0).Wq == pytest.approx(MD1(0.7, 1.0).Wq, rel=1e-12)
    assert GGc(0.7, 1.0, 1, 1.0, 0.0, method="sakasegawa").Wq == pytest.approx(MD1(0.7, 1.0).Wq, rel=1e-12)


def test_refusals() -> None:
    with pytest.raises(UnstableQueueError):
        GG1(1.2, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="klb"):
        GG1(0.5, 1.0, 1.0, 1.0, method="kingmann")
    with pytest.raises(ValueError, match="ca2"):
        GG1(0.5, 1.0, -0.1, 1.0)
    with pytest.raises(NotImplementedError, match="two moments"):
        GG1(0.5, 1.0, 1.0, 1.0).wait_quantile(0.9)
    with pytest.raises(NotImplementedError, match="two moments"):
        GGc(0.5, 1.0, 2, 1.0, 1.0).sojourn_quantile(0.9)
