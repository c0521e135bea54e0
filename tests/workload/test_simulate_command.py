"""``python -m workload.run STUDY --simulate``: the same study in virtual time, labelled, and never without step times."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.runs import Run, open_run
from workload.run import main

STUDY = """\
version: 1
name: tiny
model: smollm2-135m-instruct
engine: {executor: emulated, step_time: {base_s: 0.004, decode_seqs: 0.0005, prefill_tokens: 0.0001}, max_num_seqs: 4}
workload:
  prompt: {dist: uniform, min: 4, max: 12}
  output: {dist: geometric, mean: 6, max: 32}
experiments:
  - name: light
    arrivals: {process: poisson, rate: 25}
    warmup: {seconds: 0.5}
    measure: {seconds: 3}
    compare: [simulation]
"""
WITH_LOAD = (
    STUDY.replace("rate: 25", "load: 0.5")
    .replace("    compare: [simulation]\n", "")
    .replace("workload:", "calibration: {warmup: 0.5, seconds: 3, grid_rounds: 1}\nworkload:")
)


def write(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def run_of(out: Path, study: str) -> Run:
    (path,) = (out / study / "light").glob("*/0")
    return open_run(path)


def offered(run: Run) -> pd.DataFrame:
    rows = run.requests[run.requests["phase"] != "cooldown"].sort_values("intended_s")
    return rows.set_index("request_id")[["phase", "intended_s", "prompt_tokens", "max_tokens"]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study measured on the emulated engine, and simulated beside it."""
    folder = tmp_path_factory.mktemp("both")
    study = write(folder, STUDY)
    assert main([str(study), "--out", str(folder), "--quiet"]) == 0
    assert main([str(study), "--out", str(folder), "--quiet", "--simulate"]) == 0
    return folder


def test_the_simulated_study_offers_the_measured_ones_requests(both: Path) -> None:
    measured, simulated = run_of(both, "tiny"), run_of(both, "tiny.simulated")
    assert len(offered(measured)) > 60
    pd.testing.assert_frame_equal(offered(simulated), offered(measured), check_exact=True)


def test_every_request_takes_as_long_as_its_steps(both: Path) -> None:
    """Hand calculation: alone on the engine, a prompt step and a step for each further token."""
    run = run_of(both, "tiny.simulated")
    alone = run.requests[run.requests["finish_reason"] == "length"]
    members = run.batch.groupby("step").size()
    shared = set(run.batch.loc[run.batch["step"].isin(members[members > 1].index), "request_id"])
    alone = alone[~alone["request_id"].isin(shared) & (alone["wait_first"] == 0)]
    assert len(alone) > 10
    expected = 0.004 + 0.0001 * alone["prompt_tokens"] + (alone["output_tokens"] - 1) * 0.0045
    assert (alone["finished_s"] - alone["intended_s"]).to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-9)


def test_a_simulated_run_says_so_in_its_record_and_first_of_all_in_its_report(both: Path) -> None:
    meta = run_of(both, "tiny.simulated").meta
    assert meta["kind"] == "measurement"
    assert meta["simulated"] is True
    assert meta["engine"]["step_times"] == "step_time of the emulated engine"
    assert meta["fingerprints"]["execution"]["executor"] == "simulated"
    page = (both / "tiny.simulated" / "report.html").read_text()
    first = page[page.index('<p class="said">') :]
    assert first.startswith('<p class="said">Simulated, not measured: ')
    assert "Simulated, not measured" not in (both / "tiny" / "report.html").read_text()
    assert "simulated" not in run_of(both, "tiny").meta


def test_the_idle_time_before_a_step_is_recorded(both: Path) -> None:
    steps = run_of(both, "tiny.simulated").steps
    between = (steps["start_s"] - steps["end_s"].shift()).iloc[1:]
    assert between.to_numpy() == pytest.approx(steps["idle_s"].iloc[1:].to_numpy(), abs=1e-9)
    assert (between > 1e-6).sum() > 20


def test_step_times_are_fitted_to_a_measured_studys_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write(tmp_path, WITH_LOAD)
    assert main([str(study), "--out", str(tmp_path), "--quiet"]) == 0
    arguments = ["--simulate", "--calibration", str(tmp_path / "tiny"), "--out", str(tmp_path), "--quiet"]
    assert main([str(study), *arguments]) == 0
    capsys.readouterr()
    measured, simulated = run_of(tmp_path, "tiny"), run_of(tmp_path, "tiny.simulated")
    fitted = measured.meta["fingerprints"]["execution"]["digest"]
    assert simulated.meta["fingerprints"]["execution"]["of"] == fitted
    assert fitted in (tmp_path / "tiny.simulated" / "report.html").read_text()
    other = write(tmp_path, WITH_LOAD.replace("base_s: 0.004", "base_s: 0.008"))
    assert main([str(other), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'base_s': 0.004" in error


@pytest.mark.parametrize(
    ("change", "arguments", "clue"),
    [
        (("executor: emulated, step_time: {base_s: 0.004, decode_seqs: 0.0005, prefill_tokens: 0.0001}, ", ""), [], ""),
        (("rate: 25", "rate: 25"), ["--resume"], "--resume"),
        (("workload:\n", "workload:\n  natural: true\n"), [], "natural"),
        (("compare: [simulation]", "compare: [simulaton]"), [], "did you mean 'simulation'"),
        (("rate: 25", "rate: 25"), ["--calibration", "nowhere"], "nowhere"),
    ],
)
def test_what_can_not_be_simulated_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], arguments: list[str], clue: str
) -> None:
    study = write(tmp_path, STUDY.replace(*change))
    assert main([str(study), "--out", str(tmp_path), "--quiet", "--simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (clue or "--calibration RESULTS") in error
    assert not (tmp_path / "tiny.simulated").exists()


def test_a_calibration_without_simulate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, STUDY)), "--calibration", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "give --simulate" in capsys.readouterr().err
