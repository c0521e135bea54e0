"""The fidelity report on engines of known truth: what is faithful is found faithful, what is not is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.fidelity.__main__ import main
from analysis.fidelity.cells import Cell, ErrorInterval, Fitted, error_interval, fit_study, machine_factor
from analysis.fidelity.fresh import fresh_table
from analysis.fidelity.prediction import prediction_table, statements
from analysis.fidelity.schedule import schedule_table
from analysis.fidelity.step_time import step_time_table
from analysis.fidelity.theory import theory_table
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.simulation.mix import RequestMix
from analysis.study import StudyResults
from analysis.what_if import Objective, WhatIf, check_table, parse_changes, what_if
from engine.executors.base import BatchShape
from tests.analysis.known_study import TRUTH, engine_facts, write_run

SEATS = 8
MIX = RequestMix(*np.random.default_rng(1).geometric([[1 / 40], [1 / 12]], size=(2, 400)).astype(np.int64))


class Machine:
    """``TRUTH`` with 1 % of noise, ``factor`` times as slow."""

    def __init__(self, factor: float, seed: int) -> None:
        self._factor = factor
        self._rng = np.random.default_rng([seed, 99])

    def __call__(self, shape: BatchShape) -> float:
        return TRUTH(shape) * self._factor * float(1 + 0.01 * self._rng.standard_normal())


def measured(
    experiment: str, rate: float, repeat: int, *, factor: float = 1.0, arrivals: int = 1, seats: int = SEATS
) -> Run:
    """One repeat: arrivals and lengths of seed ``arrivals``, the machine's noise its own."""
    facts = engine_facts(seats)
    if rate:
        offered, process = MIX.open_loop(rate, 100, 15, arrivals), {"process": "poisson", "rate": rate, "load": 0.5}
    else:
        offered, process = MIX.backlog(seats, 8.0, 1.0, arrivals), {"process": "closed", "clients": 2 * seats}
    run = simulate_engine(offered, Machine(factor, repeat), facts, gap_s=2e-4, cooldown_limit_s=20.0)
    run.meta |= {"kind": "measurement", "study": "known", "experiment": experiment, "point": f"rate={rate:g}"}
    run.meta |= {"replication": arrivals, "repeat": repeat, "rate": rate, **facts}
    run.meta["engine"] = {"max_num_seqs": seats}
    run.meta["spec"] = {"arrivals": process, "slo": {"ttft_ms": 200.0, "attain": 0.95}, "cooldown": {"seconds": 20.0}}
    return run


@pytest.fixture(scope="module")
def study() -> StudyResults:
    runs = [measured("fit", 12.0, repeat) for repeat in range(2)]
    runs += [measured("other-load", 18.0, 10 + repeat) for repeat in range(3)]
    runs += [measured("slow-machine", 18.0, 20 + repeat, factor=1.08) for repeat in range(3)]
    runs += [measured("fresh", 15.0, 30 + seed, arrivals=seed) for seed in range(100, 106)]
    runs += [measured("backlog", 0.0, 40 + repeat) for repeat in range(2)]
    runs += [measured("four-seats", 0.0, 50 + repeat, seats=4) for repeat in range(2)]
    return StudyResults(Path("known"), "known", tuple(runs), ())


@pytest.fixture(scope="module")
def fitted(study: StudyResults) -> Fitted:
    return fit_study(study)


def test_an_outcome_needs_the_whole_interval() -> None:
    assert ErrorInterval(0.0, -0.01, 0.01, 5).outcome(0.02) == "meets"
    assert ErrorInterval(0.01, -0.01, 0.03, 5).outcome(0.02) == "cannot tell"
    assert ErrorInterval(0.05, 0.03, 0.07, 5).outcome(0.02) == "misses"
    assert ErrorInterval(-0.05, -0.07, -0.03, 5).outcome(0.02) == "misses"
    assert ErrorInterval(0.0, -0.5, 0.5, 5).outcome(None) == "reported"
    assert error_interval([0.01]).outcome(0.02) == "cannot tell"  # one repeat has no spread


def test_the_interval_of_an_error_is_students() -> None:
    found = error_interval([0.01, 0.02, 0.03, 0.04, 0.05])
    half = 2.776445 * np.sqrt(0.00025) / np.sqrt(5)
    assert (found.mean, found.low, found.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half), rel=1e-6)


def test_a_faithful_simulation_meets_and_a_slower_machine_misses_until_it_is_corrected(fitted: Fitted) -> None:
    table = prediction_table(fitted, draws=1).set_index(["cell", "kind", "quantity"])
    good, slow = table.loc["other-load/rate=18"], table.loc["slow-machine/rate=18"]
    for quantity in ("throughput", "mean ITL", "mean E2E", "P90 E2E"):
        assert good.loc[("raw", quantity), "outcome"] != "misses"
        assert abs(good.loc[("raw", quantity), "error"]) < good.loc[("raw", quantity), "bar"]
    assert good.loc[("raw", "mean ITL"), "outcome"] == "meets"
    assert slow.loc[("raw", "mean ITL"), "outcome"] == "misses"
    assert slow.loc[("raw", "mean ITL"), "error"] < -0.05
    assert slow.loc[("raw", "mean E2E"), "outcome"] == "misses"
    assert slow.loc[("corrected", "mean ITL"), "outcome"] == "meets"
    assert abs(slow.loc[("corrected", "mean E2E"), "error"]) < 0.02
    assert slow.loc[("corrected", "mean E2E"), "request_median"] < slow.loc[("raw", "mean E2E"), "request_median"]
    assert abs(table.loc[("backlog/rate=0", "raw", "capacity"), "error"]) < 0.02
    assert abs(table.loc[("four-seats/rate=0", "raw", "capacity"), "error"]) < 0.02


def test_the_machine_factor_is_read_from_decoding_alone(fitted: Fitted) -> None:
    factors = {
        cell.experiment: np.mean([machine_factor(run, fitted.model) for run in cell.runs]) for cell in fitted.held_out
    }
    # some hundred reference steps of 1 % noise in each of four runs: their total is good to a tenth of a percent
    assert factors["slow-machine"] / factors["other-load"] == pytest.approx(1.08, rel=3e-3)


def test_held_out_steps_show_no_bias_in_any_class_and_the_slow_machine_shows_in_all(fitted: Fitted) -> None:
    table = step_time_table(fitted).set_index(["cell", "class"])
    assert abs(table.loc[("other-load/rate=18", "all"), "bias"]) < 2e-3
    for name in ("all", "decode only", "mixed"):
        assert table.loc[("slow-machine/rate=18", name), "bias"] == pytest.approx(1 / 1.08 - 1, abs=6e-3)
        assert abs(table.loc[("slow-machine/rate=18", name), "bias_corrected"]) < 6e-3
    assert table.loc[("other-load/rate=18", "gap"), "bias"] == pytest.approx(0.0, abs=1e-6)


def test_each_schedule_is_replayed_and_a_tampered_one_is_found(study: StudyResults) -> None:
    table = schedule_table(study)
    assert (table["outcome"] == "meets").all()
    assert table["steps"].sum() > 3000
    run = study.runs[2]
    steps = run.steps.copy()
    steps.loc[5, "prefill_tokens"] += 1
    tampered = Run.from_tables(run.requests, steps, run.batch, run.gauge, run.tokens, None, run.meta)
    other = schedule_table(StudyResults(study.path, study.name, (tampered,), ()))
    assert other.loc[0, "outcome"] == "misses"
    assert other.loc[0, "different"] == 1


@pytest.mark.slow
def test_fresh_points_lie_in_the_band_and_those_of_another_engine_do_not(fitted: Fitted) -> None:
    table = fresh_table(fitted, draws=30).set_index("quantity")
    assert (table["points"] == 6).all()
    # six points in a 95 % band: fewer than four inside have a chance of 2e-3 in a quantity
    assert (table["inside"] >= 4).all()
    cell = next(cell for cell in fitted.held_out if cell.experiment == "fresh")
    runs = tuple(measured("fresh", 15.0, seed, arrivals=seed, factor=1.3) for seed in range(200, 204))
    alone = Fitted(fitted.model, fitted.source, fitted.runs, (Cell("fresh", cell.point, runs),), fitted.steps)
    wrong = fresh_table(alone, draws=10).set_index("quantity")
    assert wrong.loc["mean ITL", "inside"] == 0


@pytest.mark.slow
def test_the_map_of_theory_has_mg1_right_and_seats_as_servers_wrong(fitted: Fitted) -> None:
    table = theory_table(fitted, seats=(1, 8), loads=(0.5,), requests=1500).set_index(["seats", "model"])
    assert abs(table.loc[(1, "mg1"), "error"]) < 0.15  # the mean wait of 1,500 requests is good to some 10 %
    assert table.loc[(8, "mmc (seats as servers)"), "outcome"] == "misses"
    assert abs(table.loc[(8, "ps"), "error"]) < abs(table.loc[(8, "mmc (seats as servers)"), "error"])


@pytest.mark.slow
def test_what_if_says_the_capacity_of_engines_that_were_never_fitted(study: StudyResults, fitted: Fitted) -> None:
    table = check_table(study, fitted, draws=3).set_index("cell")
    assert table.loc["four-seats/rate=0", "what if"] == "max_num_seqs=4"
    assert (table["error"].abs() < 0.03).all()
    assert table.loc["four-seats/rate=0", "measured"] < 0.9 * table.loc["backlog/rate=0", "measured"]


def test_what_if_rows_and_replicas(study: StudyResults, fitted: Fitted) -> None:
    table = what_if(study, [{"max_num_seqs": 4}, {"replicas": 2}], draws=2, objective=False).set_index("what if")
    assert table.loc["as measured", "change"] == 0
    assert table.loc["max_num_seqs=4", "change_high"] < 0
    assert table.loc["replicas=2", "change"] == pytest.approx(1.0)
    assert not Objective.of(Run({"spec": {"slo": {"attain": 0.95}}})).is_stated
    asked = WhatIf.of(study, fitted, draws=1)
    capacity = asked.capacity()
    rate = asked.feasible_rate(None, capacity)
    assert (rate > 0.3 * capacity).all()
    assert (rate < capacity).all()


def test_changes_are_read_and_mistakes_named() -> None:
    assert parse_changes("max_num_seqs=8,policy=sjf,watermark=0.0,enable_prefix_caching=false") == {
        "max_num_seqs": 8,
        "policy": "sjf",
        "watermark": 0.0,
        "enable_prefix_caching": False,
    }
    with pytest.raises(ValueError, match=r"'seats=8' is no OPTION=VALUE; options are .*max_num_seqs"):
        parse_changes("seats=8")


def test_a_feasible_rate_needs_a_routing_that_there_is(study: StudyResults, fitted: Fitted) -> None:
    with pytest.raises(
        ValueError, match="routing is 'shortest'; it must be one of random, round_robin, jsq, power_of_two"
    ):
        WhatIf.of(study, fitted, draws=1).capacity({"replicas": 2, "routing": "shortest"})
    with pytest.raises(ValueError, match="replicas is 0"):
        WhatIf.of(study, fitted, draws=1).capacity({"replicas": 0})


def test_the_command_prints_and_saves_a_part(
    study: StudyResults, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in study.runs[:4]:
        write_run(tmp_path / "r" / run.meta["experiment"] / run.meta["point"] / str(run.meta["repeat"]), run)
    assert main([str(tmp_path / "r"), "--part", "step_time", "--save", str(tmp_path / "copy")]) == 0
    assert "decode only" in capsys.readouterr().out
    assert (tmp_path / "copy" / "step_time.csv").is_file()
    assert main([str(tmp_path / "r"), "--part", "prediction", "--fit", "nothing"]) == 2
    assert "no experiment 'nothing' to fit to; it has fit, other-load" in capsys.readouterr().err


def test_saturated_runs_state_a_capacity_and_open_ones_a_throughput(study: StudyResults) -> None:
    assert "capacity" in statements(study.runs[-1])
    assert "throughput" in statements(study.runs[0])
