"""Models against runs of known truth: what is true agrees, what is false differs, what can't be said is not said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.compare import MODELS, OF_OVERLOAD, compare, compare_study, main
from analysis.fit.step_time import fit_step_time
from analysis.paired import paired_differences
from analysis.predictions import checks
from analysis.predictions.base import Band, Check, Prediction, band_of, holm, judge, normal_band
from analysis.predictions.one_seat import lindley_path, mg1_waits, served
from analysis.predictions.shared_queue import share
from analysis.predictions.simulated import simulation
from analysis.queues import MG1
from analysis.runs import Run
from analysis.study import StudyResults
from tests.analysis.known_study import TRUTH, draw_plan, run_plan


@pytest.fixture(scope="module")
def one_seat() -> Run:
    return run_plan(draw_plan(2.0, 150.0), 1, 2.0)


@pytest.fixture(scope="module")
def batched() -> Run:
    return run_plan(draw_plan(9.0, 20.0), 8, 9.0)


def row(table: pd.DataFrame, model: str, quantity: str) -> pd.Series:
    return table[(table["model"] == model) & (table["quantity"] == quantity)].iloc[0]


def test_holm_by_hand() -> None:
    # .003 <= .01/3, .004 <= .01/2, .02 > .01
    assert holm([0.02, 0.003, 0.004], 0.01) == [False, True, True]
    assert holm([0.004, 0.004, 0.004], 0.01) == [False, False, False]
    assert holm([], 0.01) == []


def test_outside_its_own_band_but_not_by_more_than_one_of_many_is_borderline() -> None:
    # p = 2 sf(2.7) = .0069: below .01, but not below .01 / 2 as Holm wants of the smaller of two
    def at(value: float, spread: float = 0.5) -> Prediction:
        return Prediction("m", "q", "s", (), 10.0, value, 50, normal_band(10.0, spread, 10**6, value))

    assert [row.verdict for row in judge([at(10 + 2.7 * 0.5), at(10.0)])] == ["borderline", "agrees"]
    assert [row.verdict for row in judge([at(10 + 2.7 * 0.5)])] == ["differs"]
    assert [row.verdict for row in judge([at(10 + 2.7, spread=1.0), at(10.0, spread=1.0)])] == [
        "borderline",
        "too short",
    ]


def test_the_band_of_normal_draws_is_the_normal_one() -> None:
    draws = np.random.default_rng(0).normal(10.0, 2.0, 100_000)
    band = band_of(draws, 12.0, 10.0)
    z = stats.norm.ppf(0.995)
    # standard error of an extreme quantile of so many draws: about .02
    assert band.low == pytest.approx(10 - 2 * z, abs=0.1)
    assert band.high == pytest.approx(10 + 2 * z, abs=0.1)
    assert band.p_value == pytest.approx(2 * stats.norm.sf(1.0), abs=0.01)
    assert band.detectable == pytest.approx(2 * (z + stats.norm.ppf(0.9)), abs=0.1)
    assert band_of(draws, 30.0, 10.0).p_value < 1e-12


def test_few_draws_get_the_wider_band_of_students_t() -> None:
    draws = np.random.default_rng(1).normal(0.0, 1.0, 12)
    band = band_of(draws, 0.0, 0.0)
    half = stats.t.ppf(0.995, 11) * draws.std(ddof=1) * math.sqrt(1 + 1 / 12)
    assert (band.low, band.high) == pytest.approx((draws.mean() - half, draws.mean() + half))


def test_verdicts_in_order_of_precedence() -> None:
    def said(**changes: object) -> str:
        base = Prediction("m", "q", "s", predicted=1.0, measured=1.0, n=10, band=Band(0.9, 1.1, 0.5, 0.2, 100))
        return judge([replace(base, **changes)])[0].verdict  # type: ignore[arg-type]

    assert said() == "agrees"
    assert said(band=Band(0.9, 1.1, 1e-6, 0.2, 100)) == "differs"
    assert said(band=Band(0.1, 9.0, 0.5, 3.0, 100)) == "too short"
    assert said(band=Band(0.1, 2.5, 1e-6, 3.0, 100)) == "differs"  # short, and still far off
    assert said(checks=(Check("nobody waits", "half did", holds=False),)).startswith(
        "assumption violated: nobody waits"
    )
    assert said(checks=(Check("Poisson", "p = 1e-6", 1e-6),)).startswith("assumption violated: Poisson")
    assert said(refused="unstable") == "unstable"
    assert said(band=None, tolerance=0.02, scatter=0.03) == "differs"


def test_lindley_by_hand() -> None:
    # came at 0, 1, 5; served for 2, 3, 1: ends 2, 5, 6
    path = lindley_path(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 1.0]))
    assert path.tolist() == [2.0, 4.0, 1.0]


def test_lindley_reproduces_each_request_of_a_one_seat_engine(one_seat: Run) -> None:
    seen = served(one_seat)
    np.testing.assert_allclose(lindley_path(seen.received, seen.service, seen.gap), seen.sojourn, atol=1e-9)
    assert row(compare(one_seat, ["lindley"]), "lindley", "each sojourn")["verdict"] == "agrees"


def test_service_times_are_those_of_the_step_time_model(one_seat: Run) -> None:
    seen = served(one_seat)
    requests = one_seat.requests[one_seat.requests["finish_reason"] == "length"].sort_values("scheduled_s")
    prompt, output = (requests[name].to_numpy(dtype=float) for name in ("prompt_tokens", "max_tokens"))
    contexts = (output - 1) * (prompt + 1) + (output - 1) * (output - 2) / 2  # prompt + 1 .. prompt + output - 1
    decodes = (TRUTH.base_s + TRUTH.decode_seqs) * (output - 1) + TRUTH.kv_tokens * contexts
    np.testing.assert_allclose(seen.service, TRUTH.base_s + TRUTH.prefill_tokens * prompt + decodes, rtol=1e-9)


def test_simulated_m_g_1_runs_have_the_mean_of_pollaczek_and_khinchine() -> None:
    rng = np.random.default_rng(3)
    service = rng.exponential(1.0, 2000)
    queue = MG1(0.5, service)
    waits, sojourns = mg1_waits(service, 0.5, 400, 2000, 400, seed=4)
    error = waits.std(ddof=1) / math.sqrt(400)
    assert abs(waits.mean() - queue.Wq) < 4 * error
    assert abs(sojourns.mean() - queue.W) < 4 * error


def test_m_g_1_agrees_with_the_engine_it_describes_and_not_with_twice_the_load(one_seat: Run) -> None:
    table = compare(one_seat, ["mg1"])
    assert set(table["verdict"]) <= {"agrees", "too short"}
    assert (table["measured"] > table["low"]).all()
    assert (table["measured"] < table["high"]).all()
    believed = Run(dict(one_seat.meta, rate=0.4), tables={name: getattr(one_seat, name) for name in _TABLES})
    assert row(compare(believed, ["mg1"]), "mg1", "mean wait")["verdict"] == "differs"


_TABLES = ("requests", "tokens", "steps", "batch", "gauge")


def test_m_g_1_refuses_arrivals_that_are_not_poisson() -> None:
    run = run_plan(draw_plan(2.0, 150.0, process="constant"), 1, 2.0)
    verdicts = compare(run, ["mg1"])["verdict"]
    assert verdicts.str.startswith("assumption violated: Poisson arrivals").all()


def test_models_of_one_seat_do_not_apply_to_eight(batched: Run) -> None:
    table = compare(batched, ["mg1", "lindley"])
    assert table["verdict"].str.startswith("not applicable: the engine has 8 seats").all()


def test_an_unstable_run_is_compared_with_nothing() -> None:
    run = run_plan(draw_plan(40.0, 20.0), 8, 40.0)
    about_averages = [name for name in MODELS if name not in OF_OVERLOAD]
    assert compare(run, about_averages)["verdict"].tolist() == ["unstable"] * len(about_averages)


def test_an_unknown_model_is_named(batched: Run) -> None:
    with pytest.raises(ValueError, match="no model is called 'mg7'; there are mg1, lindley, gg1, mmpp1, ps"):
        compare(batched, ["mg7"])


def test_equal_sharing_of_two_requests_by_hand() -> None:
    # alone at speed 1 from 0 to 1; then both at 1/2 each: the second (1 unit) ends at 3, the first has 1 left and ends at 4
    sojourns = share(np.array([0.0, 1.0]), np.array([3.0, 1.0]), lambda n: 1.0).sojourn
    assert sojourns.tolist() == pytest.approx([4.0, 2.0])


def test_equal_sharing_has_the_mean_of_m_g_1_ps_whatever_the_sizes() -> None:
    rng = np.random.default_rng(5)
    means = []
    for _ in range(40):
        arrivals = np.cumsum(rng.exponential(2.0, 2200))
        means.append(
            share(arrivals, rng.choice([0.5, 2.5], 2200, p=[0.75, 0.25]), lambda n: 1.0).sojourn[200:2000].mean()
        )
    error = np.std(means, ddof=1) / math.sqrt(40)
    assert abs(np.mean(means) - 1.0 / (1 - 0.5)) < 4 * error


def test_the_simulation_agrees_with_its_own_truth_and_not_with_a_slower_machine(batched: Run) -> None:
    model = fit_step_time(batched)
    assert {p.verdict for p in judge(simulation(batched, model))} == {"agrees"}
    slower = replace(TRUTH, base_s=1.3 * TRUTH.base_s, decode_seqs=1.3 * TRUTH.decode_seqs)
    other = run_plan(draw_plan(9.0, 20.0), 8, 9.0, slower)
    assert {p.verdict for p in judge(simulation(other, model))} == {"differs"}


def test_without_a_calibration_the_fitted_models_do_not_apply(batched: Run) -> None:
    verdicts = compare(batched, ["ps", "simulation"])["verdict"]
    assert verdicts.str.startswith("not applicable: no step grid").all()


def test_correlated_service_times_are_seen() -> None:
    rng = np.random.default_rng(6)
    walk = np.exp(0.3 * np.cumsum(rng.normal(size=200)) / 3)
    gaps = rng.exponential(1.0, 200)
    assert checks.independent_services(walk, gaps).p_value < 1e-6  # type: ignore[operator]
    assert checks.independent_services(rng.permutation(walk), gaps).p_value > 1e-3  # type: ignore[operator]


def test_two_studies_are_paired_request_by_request(one_seat: Run) -> None:
    later = one_seat.requests.copy()
    later[["first_token_s", "last_token_s", "finished_s"]] += 0.010
    names = {"experiment": "e", "point": "p", "replication": 0}
    tables = {name: getattr(one_seat, name) for name in _TABLES}
    first = Run({**one_seat.meta, **names}, tables=tables)
    second = Run({**one_seat.meta, **names}, tables={**tables, "requests": later})
    found = paired_differences(_study(first), _study(second)).set_index("metric")
    assert found.loc["e2e", "difference"] == pytest.approx(0.010)
    assert found.loc["e2e", "verdict"] == "slower"
    assert found.loc["tpot", "verdict"] == "no difference seen"
    assert set(found["note"]) == {"same requests"}
    with pytest.raises(ValueError, match="no run in common"):
        paired_differences(_study(first), _study(Run({**one_seat.meta, **names, "point": "q"}, tables=tables)))


def test_the_verdicts_of_a_study_share_one_error(one_seat: Run, batched: Run) -> None:
    tables = {name: getattr(batched, name) for name in _TABLES}
    other = Run({**batched.meta, "experiment": "b", "point": "p", "replication": 0}, tables=tables)
    study = StudyResults(Path(), "two", (one_seat, other), ())
    assert compare_study(study, ["lindley"])["run"].nunique() == 2
    assert compare_study(study).empty  # neither names a model


def test_a_folder_without_runs_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def _study(run: Run) -> StudyResults:
    return StudyResults(Path("somewhere"), "known", (run,), ())


def test_a_run_that_broke_off_is_compared_with_nothing(batched: Run) -> None:
    broken = Run({**batched.meta, "status": "failed"}, tables={name: getattr(batched, name) for name in _TABLES})
    assert compare(broken, ["ps"])["verdict"].tolist() == ["not applicable: the run is failed"]
