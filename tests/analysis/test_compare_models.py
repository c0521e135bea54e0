"""Each model of ``compare`` against the engine in virtual time where it should hold, and where it should not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.arrivals import MMPP2
from analysis.compare import as_text, compare_study, main, to_json
from analysis.fit.step_time import StepTimeModel, fit_step_time
from analysis.predictions.base import Check, Prediction, band_of, judge, normal_band
from analysis.predictions.bursts import gg1, mmpp1, mmpp_gaps
from analysis.predictions.closed import closed, limits_of, saturation
from analysis.predictions.first_token import ttft
from analysis.predictions.pooled import pool
from analysis.predictions.shared_queue import share
from analysis.predictions.sharing import limited_ps, ps
from analysis.predictions.simulated import simulation
from analysis.predictions.static_batch import batch_service, batch_sojourns
from analysis.queues import MM1, BatchService, ClosedStation
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.study import StudyResults
from tests.analysis.known_study import TRUTH, draw_plan, engine_facts, run_plan
from workload.loops import ClosedLoop, RequestList
from workload.phases import Phases
from workload.plan import RequestPlan
from workload.prompts import TokenSource


@pytest.fixture(scope="module")
def calm() -> Run:
    return run_plan(draw_plan(9.0, 60.0), 8, 9.0)


@pytest.fixture(scope="module")
def model(calm: Run) -> StepTimeModel:
    return fit_step_time(calm)


def loop(clients: int, think_s: float, seats: int = 8) -> Run:
    """A closed loop of exponential thinks for 60 s on the engine of known truth."""
    plan, source = draw_plan(20.0, 60.0, seed=9), TokenSource(1000, [], 1)
    prompts = [source.tokens(2, i, int(length)) for i, length in enumerate(plan.prompt_tokens)]
    requests = RequestList(prompts, plan.output_tokens, natural=False, seed=1, predicted=None)
    rng = np.random.default_rng(3)
    think = (lambda client: float(rng.exponential(think_s))) if think_s else None
    source_loop = ClosedLoop(clients, requests, think=think, stagger_s=1.0)
    run = simulate_engine(source_loop, TRUTH, engine_facts(seats), phases=Phases(5.0, 65.0), cooldown_limit_s=10.0)
    run.meta |= {"kind": "measurement", "engine": {"max_num_seqs": seats}, **engine_facts(seats)}
    run.meta["spec"] = {"arrivals": {"process": "closed"}, "cooldown": {"seconds": 10.0}}
    return run


def verdicts(rows: list[Prediction]) -> list[str]:
    return [row.verdict for row in judge(rows)]


def test_first_tokens_wait_for_the_rest_of_a_step_while_nobody_waits_for_a_seat(
    calm: Run, model: StepTimeModel
) -> None:
    rows = ttft(calm, model)
    assert verdicts(rows) == ["agrees"]
    assert rows[0].detectable < 0.1
    full = run_plan(draw_plan(17.0, 30.0), 8, 17.0)
    assert verdicts(ttft(full, model))[0].startswith("assumption violated: nobody waits for a seat")
    late = calm.requests.assign(first_token_s=calm.requests["first_token_s"] + 0.003)
    slow = Run(calm.meta, tables={"requests": late, "steps": calm.steps})
    # the client's stamps late by 3 ms are transit, which the engine's own stamps explain; the engine's late are not
    assert verdicts(ttft(slow, model)) == ["agrees"]
    slow = Run(
        calm.meta,
        tables={"requests": late.assign(emitted_first_s=late["emitted_first_s"] + 0.003), "steps": calm.steps},
    )
    assert verdicts(ttft(slow, model)) == ["differs"]


def test_full_seats_want_limited_sharing(model: StepTimeModel) -> None:
    full = run_plan(draw_plan(17.0, 60.0), 8, 17.0)
    assert set(verdicts(limited_ps(full, model))) <= {"agrees", "too short"}
    assert all(v.startswith("assumption violated: nobody waits") for v in verdicts(ps(full, model)))
    e2e, wait = limited_ps(full, model)
    assert e2e.error == pytest.approx(0.0, abs=0.2)
    assert wait.band is not None
    assert 0.0 <= wait.band.low < wait.measured < wait.band.high


def test_a_closed_loop_is_a_station_with_thinking_clients_and_no_open_queue(model: StepTimeModel) -> None:
    run = loop(6, 0.3)
    assert verdicts(closed(run, model)) == ["agrees", "agrees"]
    assert all(v.startswith("assumption violated: Poisson arrivals (a closed loop") for v in verdicts(ps(run, model)))
    assert set(verdicts(simulation(run, model))) <= {"agrees", "too short"}
    slower = fit_step_time(run_plan(draw_plan(9.0, 20.0), 8, 9.0, replace(TRUTH, base_s=0.02, decode_seqs=0.002)))
    assert verdicts(closed(run, slower)) == ["differs", "differs"]
    assert verdicts(closed(run_plan(draw_plan(9.0, 10.0), 8, 9.0), model))[0].startswith("not applicable")


def test_the_simulated_loop_has_the_mean_of_the_birth_death_chain() -> None:
    rng = np.random.default_rng(4)
    clients, each = 5, 4000
    follows = np.arange(1, clients * each + 1)
    follows[each - 1 :: each] = -1
    arrivals = np.full(clients * each, np.nan)
    arrivals[::each] = rng.random(clients)
    visits = share(
        arrivals,
        rng.exponential(1.0, arrivals.size),
        lambda n: 1.0 * n**0.5,
        3,
        follows,
        rng.exponential(2.0, arrivals.size),
    )
    exact = ClosedStation(clients, 2.0, lambda n: min(n, 3) ** 0.5, seats=3)
    inside = visits.arrived < 0.9 * np.nanmin(visits.left[each - 1 :: each])
    assert visits.sojourn[inside].mean() == pytest.approx(exact.R, rel=0.03)
    assert visits.wait[inside].mean() == pytest.approx(exact.Wq, rel=0.12)


def test_a_backlog_completes_what_the_tightest_limit_allows(model: StepTimeModel) -> None:
    rows = saturation(loop(20, 0.0), model)
    assert verdicts(rows) == ["agrees"]
    over = run_plan(draw_plan(40.0, 20.0), 8, 40.0)
    assert verdicts(saturation(over, model)) == ["agrees"]
    assert "limited by seats" in rows[0].note
    assert verdicts(saturation(loop(2, 1.0), model))[0].startswith("not applicable: nobody waited")
    over.meta["fingerprints"]["scheduling"] |= {"num_kv_blocks": 8}
    assert limits_of(over, model).binding == "kv"


def sessions_run(rate: float) -> Run:
    """Sessions of three turns as a plan would time them, thinking included."""
    rng = np.random.default_rng(6)
    starts = np.cumsum(rng.exponential(3 / rate, 240))
    turns = np.sort(np.concatenate([starts, starts + 2.0, starts + 4.0]))
    plan = draw_plan(rate, 60.0)
    n = min(turns.size, len(plan.intended_s))
    phases = np.where(turns[:n] < 5, "warmup", np.where(turns[:n] < 65, "measure", "cooldown"))
    plan = RequestPlan(
        turns[:n], plan.prompt_tokens[:n], plan.output_tokens[:n], plan.output_tokens[:n], phases, 5.0, 65.0
    )
    run = run_plan(plan, 8, rate)
    order = np.argsort(np.concatenate([starts, starts + 2.0, starts + 4.0]), kind="stable")[:n]
    names = np.array([f"session-{i % 240}" for i in range(720)])[order]
    rows = run.requests.sort_values("intended_s", kind="stable").assign(
        session_id=names[: len(run.requests)], turn=(order // 240)[: len(run.requests)]
    )
    meta = {**run.meta, "spec": {**run.meta["spec"], "arrivals": {"process": "sessions"}}}
    return Run(meta, tables={**{t: getattr(run, t) for t in ("tokens", "steps", "batch", "gauge")}, "requests": rows})


def test_sessions_are_judged_by_their_starts(model: StepTimeModel) -> None:
    rows = ps(sessions_run(9.0), model)
    assert rows[0].checks[0].assumption == "Poisson starts of sessions"
    assert set(verdicts(rows)) <= {"agrees", "too short"}


def test_constant_gaps_and_bursts_have_their_own_formulas() -> None:
    even = run_plan(draw_plan(2.0, 150.0, process="constant"), 1, 2.0)
    assert not any(v.startswith("assumption violated") for v in verdicts(gg1(even)))
    process = MMPP2((0.4, 3.6), (0.1, 0.1), 0.0, 0.0, 1)
    plan = draw_plan(2.0, 400.0)
    intended = np.cumsum(mmpp_gaps(process, np.random.default_rng(2), len(plan.intended_s)))
    phases = np.where(intended < 5, "warmup", np.where(intended < 405, "measure", "cooldown"))
    plan = RequestPlan(intended, plan.prompt_tokens, plan.output_tokens, plan.output_tokens, phases, 5.0, 405.0)
    bursty = run_plan(plan, 1, 2.0)
    bursty.meta["spec"]["arrivals"] = {"process": "mmpp"}
    (row,) = judge(mmpp1(bursty))
    assert row.verdict in ("agrees", "too short")
    assert row.band is not None
    assert row.band.low < row.measured < row.band.high


def test_mmpp_gaps_have_the_process_s_rate_and_dispersion() -> None:
    process = MMPP2((0.2, 3.0), (0.1, 0.3), 0.0, 0.0, 1)
    times = np.cumsum(mmpp_gaps(process, np.random.default_rng(1), 200_000))
    assert times.size / times[-1] == pytest.approx(process.mean_rate, rel=0.02)
    counts = np.bincount((times / 20.0).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(process.dispersion(20.0), rel=0.05)


def test_simulated_static_batches_have_the_mean_of_baileys_chain() -> None:
    arrivals = np.cumsum(np.random.default_rng(5).exponential(1 / 6.0, 200_000))
    assert batch_sojourns(arrivals, 0.05, 0.2, 4)[1000:].mean() == pytest.approx(
        BatchService(6.0, 0.05, 0.2, 4).W, rel=0.05
    )


def test_other_policies_are_no_static_batches(calm: Run, model: StepTimeModel) -> None:
    assert verdicts(batch_service(calm, model)) == [
        "not applicable: the policy is fcfs, this is a model of static_batch"
    ]


def test_a_band_of_few_positive_draws_never_reaches_below_0() -> None:
    rng = np.random.default_rng(7)
    band = band_of(rng.lognormal(0.0, 1.5, 12), 1.0, 2.0)
    assert 0.0 < band.low < band.high
    assert band.detectable > 0
    held = 0
    for _ in range(400):
        values = rng.lognormal(0.0, 0.8, 31)
        found = band_of(values[:30], float(values[30]), 1.0)
        held += found.low <= values[30] <= found.high
    assert held >= 388  # of 400 at 99 %: fewer than 388 once in 2,000
    assert normal_band(1.0, 2.0, 9, 1.0).low == 0.0
    assert band_of(np.append(np.zeros(5), np.ones(20)), 0.5, 1.0).low == 0.0


def test_a_run_that_would_not_notice_three_tenths_is_too_short_to_agree() -> None:
    rng = np.random.default_rng(8)
    for spread, verdict in ((0.05, "agrees"), (0.2, "too short")):
        band = band_of(rng.normal(1.0, spread, 5000), 1.1, 1.0)
        (row,) = judge([Prediction("m", "q", "s", predicted=1.0, measured=1.1, n=10, band=band)])
        assert row.verdict == verdict
        assert row.detectable == pytest.approx((2.576 + 1.282) * spread, rel=0.1)


def test_pooled_replications_notice_less_than_any_of_them_alone() -> None:
    rng = np.random.default_rng(9)

    def one(value: float, p: float) -> Prediction:
        band = band_of(rng.normal(1.0, 0.2, 4000), value, 1.0)
        return Prediction("m", "q", "s", (Check("a", "f", p),), 1.0, value, 50, band)

    runs = [[one(value, p)] for value, p in ((1.1, 0.04), (0.9, 0.03), (1.0, 0.5), (1.2, 0.2))]
    (row,) = judge(pool(runs))
    alone = judge(runs[0])[0]
    assert alone.verdict == "too short"
    assert row.detectable == pytest.approx(alone.detectable / 2, rel=0.05)
    assert (row.measured, row.n) == (pytest.approx(1.05), 200)
    # Fisher: -2 sum of logs = 18.1 on 8 degrees of freedom
    assert row.checks[0].p_value == pytest.approx(0.0206, abs=0.002)
    broken = [runs[0], [replace(runs[1][0], refused="unstable")]]
    assert judge(pool(broken))[0].verdict == "unstable"
    with pytest.raises(ValueError, match="same models"):
        pool([runs[0], [replace(runs[1][0], model="other")]])


def test_repeats_of_one_sequence_of_arrivals_notice_no_less_than_one_of_them() -> None:
    rng = np.random.default_rng(9)
    bands = [band_of(rng.normal(1.0, 0.2, 4000), value, 1.0) for value in (1.1, 1.3)]
    runs = [
        [Prediction("m", "q", "s", (), 1.0, value, 50, band)] for value, band in zip((1.1, 1.3), bands, strict=True)
    ]
    (row,) = pool(runs, repeats=True)
    assert row.band is not None
    assert row.band.detectable == bands[0].detectable
    assert row.measured == pytest.approx(1.2)


def test_repeats_have_names_of_their_own_and_are_no_replications(calm: Run) -> None:
    tables = {name: getattr(calm, name) for name in ("requests", "tokens", "steps", "batch", "gauge")}
    about = {"experiment": "e", "point": "p", "replication": 0}
    specs = [{**calm.meta["spec"], "repeat": k, "repeats": 2} for k in range(2)]
    runs = tuple(Run({**calm.meta, **about, "spec": spec}, tables=tables) for spec in specs)
    table = compare_study(StudyResults(Path(), "two", runs, ()), ["ttft"])
    assert table["run"].tolist() == ["e/p/0.0", "e/p/0.1", "e/p (all 2)"]
    assert as_text(table).count("not applicable") == 1  # said once for all runs


def test_others_who_arrive_during_the_same_step_lengthen_the_step_with_the_own_prompt() -> None:
    """Prompts of 16 tokens that cost as much as a whole step: left out, the mean TTFT came out a sixth too low."""
    dear = replace(TRUTH, prefill_tokens=3e-3)
    run = run_plan(draw_plan(5.0, 240.0), 8, 5.0, dear)
    (row,) = ttft(run, fit_step_time(run))
    assert judge([row])[0].verdict == "agrees"
    assert abs(row.error) < 0.05


def test_a_study_shows_pooled_points_and_writes_json(
    calm: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {name: getattr(calm, name) for name in ("requests", "tokens", "steps", "batch", "gauge")}
    runs = tuple(Run({**calm.meta, "experiment": "e", "point": "p", "replication": k}, tables=tables) for k in range(2))
    table = compare_study(StudyResults(Path(), "two", runs, ()), ["ttft"])
    assert table["run"].tolist() == ["e/p/0", "e/p/1", "e/p (all 2)"]
    assert "too short" in as_text(table) or "not applicable" in as_text(table)
    rows = json.loads(to_json(table))
    assert [row["run"] for row in rows] == table["run"].tolist()
    assert rows[0]["measured"] is None
    assert pd.DataFrame(rows).columns.tolist() == table.columns.tolist()
    assert main([str(tmp_path / "nothing")]) == 2
    assert "error: " in capsys.readouterr().err


def test_shared_service_of_exponential_sizes_is_m_m_1_in_the_mean() -> None:
    rng = np.random.default_rng(10)
    visits = share(np.cumsum(rng.exponential(2.0, 60_000)), rng.exponential(1.0, 60_000), lambda n: 1.0, seats=1)
    assert visits.sojourn.mean() == pytest.approx(MM1(0.5, 1.0).W, rel=0.06)
    assert math.isclose(float(visits.wait.mean()), MM1(0.5, 1.0).Wq, rel_tol=0.1)
