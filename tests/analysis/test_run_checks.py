"""Checks over the runs of a study: what is right holds, and each law breaks when what it speaks of is tampered with."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.fit.step_time import fit_step_time
from analysis.run_checks import operational_laws, planned_warmup, steady_steps
from analysis.runs import Run
from analysis.simulation import simulate_engine
from tests.analysis.known_study import TRUTH, draw_plan, engine_facts, run_plan
from workload.calibrate import saturated_loop
from workload.loops import RequestList
from workload.phases import Phases
from workload.prompts import TokenSource

UTILISATION, PASTA, BALANCE = (
    "busy = λE[S] of one seat",
    "Poisson arrivals see time averages",
    "N = X(R + Z) of a closed loop",
)


@pytest.fixture(scope="module")
def one_seat() -> Run:
    return run_plan(draw_plan(2.0, 300.0), 1, 2.0)


@pytest.fixture(scope="module")
def loop() -> Run:
    plan, source = draw_plan(20.0, 60.0, seed=9), TokenSource(1000, [], 1)
    prompts = [source.tokens(2, i, int(length)) for i, length in enumerate(plan.prompt_tokens)]
    requests = RequestList(prompts, plan.output_tokens, natural=False, seed=1, predicted=None)
    phases = Phases(2.0, 32.0)
    return simulate_engine(saturated_loop(requests, 4), TRUTH, engine_facts(4), phases=phases, cooldown_limit_s=0.0)


def changed(run: Run, **tables: pd.DataFrame) -> Run:
    kept = {name: tables.get(name, getattr(run, name)) for name in ("requests", "gauge", "steps", "batch")}
    return Run.from_tables(**kept, meta=run.meta)


def test_one_seat_is_as_busy_as_its_services(one_seat: Run) -> None:
    assert operational_laws([one_seat])[UTILISATION].held
    late = one_seat.requests.assign(scheduled_s=lambda rows: rows["scheduled_s"] + 0.02)
    found = operational_laws([changed(one_seat, requests=late)])[UTILISATION]
    assert "busy" in found.broken[0]


def test_poisson_arrivals_see_the_average_and_requests_that_avoid_the_queue_do_not(one_seat: Run) -> None:
    checked = operational_laws([one_seat])[PASTA]
    assert (len(checked.broken), checked.number) == (0, 1)
    number = one_seat.gauge[["inbox", "waiting", "running"]].sum(axis=1).to_numpy()
    idle = one_seat.gauge["t_s"].to_numpy()[np.flatnonzero(number == 0)] + 1e-4  # just after the queue ran empty
    stamps = np.resize(idle, len(one_seat.requests))
    avoiding = changed(one_seat, requests=one_seat.requests.assign(intended_s=np.sort(stamps)))
    assert operational_laws([avoiding])[PASTA].broken


def test_a_closed_loop_balances_unless_a_client_falls_silent(loop: Run) -> None:
    assert operational_laws([loop])[BALANCE].held
    rows = loop.requests
    silent = (rows["session_id"] == rows["session_id"].iloc[0]) & (rows["intended_s"] > 5.0)
    found = operational_laws([changed(loop, requests=rows[~silent])])[BALANCE]
    assert "for 8 clients" in found.broken[0]


def test_steps_that_grow_slower_within_a_run_are_seen(one_seat: Run) -> None:
    model = fit_step_time(one_seat)
    assert steady_steps([one_seat], lambda run: model).held
    steps = one_seat.steps
    slower = 1 + 0.2 * np.linspace(0, 1, len(steps))
    ends = steps["start_s"] + (steps["end_s"] - steps["start_s"]) * slower
    found = steady_steps([changed(one_seat, steps=steps.assign(end_s=ends))], lambda run: model)
    assert "+20" in found.broken[0] or "+19" in found.broken[0]
    assert steady_steps([one_seat], lambda run: None).number == 0


def stamped(e2e: np.ndarray, warmup: int, replication: int = 0) -> Run:
    intended = np.arange(e2e.size, dtype=float)
    rows = pd.DataFrame({"request_id": intended.astype(str), "intended_s": intended, "finished_s": intended + e2e})
    rows["phase"] = np.where(np.arange(e2e.size) < warmup, "warmup", "measure")
    rows["finish_reason"] = "length"
    return Run.from_tables(rows, meta={"experiment": "e", "point": "p", "replication": replication})


def test_a_warmup_that_ends_too_early_is_seen_in_the_mean_of_the_replications() -> None:
    rng = np.random.default_rng(0)
    transient = 5 * np.exp(-np.arange(2000) / 100)
    runs = [stamped(1 + rng.exponential(1.0, 2000) + transient, 20, k) for k in range(5)]
    found = planned_warmup(runs)
    assert found.number == 1
    assert found.broken[0].startswith("e/p (MSER-5 cuts ")
    assert planned_warmup([stamped(1 + rng.exponential(1.0, 2000), 20)]).held
    assert planned_warmup([stamped(np.ones(30), 5)]).unknown
    assert planned_warmup([stamped(np.append(np.ones(200), np.inf), 5)]).unknown
