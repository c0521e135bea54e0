"""Queue models against LINE (PyPI line-solver), which solves chains, product forms and matrix models in its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.queues import GG1, GIM1, MG1, MM1, MMPP1, BatchArrival, ClosedNetwork, MMc, MMcK, erlang_c
from analysis.queues.service import erlang, hyperexponential

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]
line: Any = pytest.importorskip("line_solver")
qsys: Any = pytest.importorskip("line_solver.api.qsys")


def solved(solver: Any, model: Any) -> Any:
    """LINE's table of a model, by station."""
    table = solver(model).getAvgTable()
    frame = table.data if hasattr(table, "data") else table
    return frame.set_index("Station")


def station(arrival: Any, service: Any, servers: int = 1, capacity: int | None = None) -> Any:
    """Source, one first-come-first-served queue, sink."""
    model = line.Network("model")
    source, queue = line.Source(model, "source"), line.Queue(model, "queue", line.SchedStrategy.FCFS)
    sink, jobs = line.Sink(model, "sink"), line.OpenClass(model, "jobs")
    source.setArrival(jobs, arrival)
    queue.setService(jobs, service)
    queue.setNumberOfServers(servers)
    if capacity is not None:
        queue.setCapacity(capacity)
    model.link(line.Network.serialRouting(source, queue, sink))
    return model


@pytest.mark.parametrize(("lam", "c"), [(0.5, 1), (1.4, 2), (7.2, 8)])
def test_m_m_c_is_lines_exact_mva(lam: float, c: int) -> None:
    table = solved(line.SolverMVA, station(line.Exp(lam), line.Exp(1.0), c))
    ours = MM1(lam, 1.0) if c == 1 else MMc(lam, 1.0, c)
    # LINE rounds what its table shows; 1e-4 of it
    assert float(table.loc["queue", "QLen"]) == pytest.approx(ours.L, rel=1e-4)
    assert float(table.loc["queue", "RespT"]) == pytest.approx(ours.W, rel=1e-4)


def test_erlang_c_and_the_loss_of_m_m_1_k_are_lines() -> None:
    loss, _ = qsys.qsys_mm1k_loss(1.4, 1.0, 6)
    assert MMcK(1.4, 1.0, 1, 6).blocking == pytest.approx(loss, rel=1e-9)
    waiting = qsys.qsys_mmk(1.4, 1.0, 2)
    W = float(waiting["W"] if isinstance(waiting, dict) else waiting[0])
    assert 1.0 + erlang_c(2, 1.4) / (2 - 1.4) == pytest.approx(W, rel=1e-9)


def test_closed_networks_are_lines_exact_mva() -> None:
    model = line.Network("closed")
    think = line.Delay(model, "think")
    gpu, cpu = (line.Queue(model, name, line.SchedStrategy.PS) for name in ("gpu", "cpu"))
    users = line.ClosedClass(model, "users", 7, think)
    for place, rate in ((think, 0.5), (gpu, 1.0), (cpu, 2.0)):
        place.setService(users, line.Exp(rate))
    model.link(line.Network.serialRouting(think, gpu, cpu))
    table = solved(line.SolverMVA, model)
    ours = ClosedNetwork(7, 2.0, {"gpu": 1.0, "cpu": 0.5})
    for name in ("gpu", "cpu"):
        assert float(table.loc[name, "Tput"]) == pytest.approx(ours.X, rel=1e-4)
        assert float(table.loc[name, "RespT"]) == pytest.approx(ours.residence[name], rel=1e-4)


def test_the_two_moment_formulas_are_lines() -> None:
    lam, ES, ca2, cs2 = 0.8, 1.0, 0.5, 1.5
    W = float(qsys.qsys_gig1_approx_klb(lam, 1 / ES, ca2**0.5, cs2**0.5)[0])
    assert pytest.approx(W, rel=1e-9) == GG1(lam, ES, ca2, cs2, "klb").W
    # LINE's Marchal has ca where Marchal (and its own source's text) has ca^2: it is given the square.
    W = float(qsys.qsys_gig1_approx_marchal(lam, 1 / ES, ca2, cs2**0.5)[0])
    assert pytest.approx(W, rel=1e-9) == GG1(lam, ES, ca2, cs2, "marchal").W
    service = hyperexponential([0.3, 0.7], [0.6, 2.0])
    W = qsys.qsys_mg1(0.5, 1 / service.mean, service.scv**0.5)
    W = float(W["W"] if isinstance(W, dict) else W[0])
    assert pytest.approx(W, rel=1e-9) == MG1(0.5, service).W


def test_gi_m_1_mmpp_ph_1_and_batch_arrivals_are_lines() -> None:
    gaps = GIM1(erlang(3, 1.6), 1.0)
    assert pytest.approx(float(qsys.qsys_gm1(gaps.sigma, 1.0)["W"]), rel=1e-9) == gaps.W
    service = erlang(2, 0.9)
    D1, Q = np.diag([0.2, 1.0]), np.array([[-0.1, 0.1], [0.1, -0.1]])
    theirs = qsys.qsys_mapph1(Q - D1, D1, service.start[None, :], service.generator)
    ours = MMPP1([0.2, 1.0], Q.tolist(), service)
    assert pytest.approx(float(theirs.meanQueueLength), rel=1e-6) == ours.L
    W = float(qsys.qsys_mxm1(0.3, 1.0, np.array([1, 3]), np.array([0.5, 0.5]))[0])
    assert pytest.approx(W, rel=1e-9) == BatchArrival(0.3, {1: 0.5, 3: 0.5}, ([1.0], [[-1.0]])).W
