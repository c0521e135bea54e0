"""The studies in experiments/ can be read as they are, and those of this part of the house run, in virtual time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.capacity import capacity
from analysis.runs import open_run
from analysis.simulation.target import SimulatedEngines
from workload.experiment import StudyError, load_study
from workload.reporting import Quiet
from workload.run import main
from workload.runner import StudyRunner

FOLDER = Path(__file__).parents[2] / "experiments"
EMULATED = "engine: {executor: emulated, step_time: {base_s: 0.01, decode_seqs: 0.0005, prefill_tokens: 0.00005}, "


def shortened(name: str, folder: Path) -> Path:
    """The study on an emulated engine, each run some seconds long."""
    text = (FOLDER / name).read_text().replace("engine: {max_num_seqs", EMULATED + "max_num_seqs", 1)
    text = text.replace("experiments:", "calibration: {warmup: 0.5, seconds: 2, grid_rounds: 1}\nexperiments:", 1)
    text = re.sub(r"warmup: {seconds: \d+}", "warmup: {seconds: 1}", text)
    text = re.sub(r"measure: {seconds: \d+}", "measure: {seconds: 5}", text)
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_every_study_has_a_plan(name: str, traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = load_study(FOLDER / name)
    assert main([str(FOLDER / name), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"^{experiment} ", printed, re.MULTILINE) for experiment in study.experiments)


@pytest.mark.parametrize("name", ["policies.yaml", "trace_replay.yaml"])
def test_the_study_runs_in_virtual_time(name: str, traces: Path, tmp_path: Path) -> None:
    """What ``--simulate`` does, without its report."""
    study = load_study(shortened(name, tmp_path))
    runner = StudyRunner(
        study,
        tmp_path / "results",
        start_target=SimulatedEngines(None).start,
        capacity_of=lambda path: capacity(open_run(path)),
        reporter=Quiet(),
    )
    directories = runner.run(study.runs)
    runs = {run.run_dir: open_run(path).requests for run, path in zip(study.runs, directories, strict=True)}
    assert all(len(rows) and set(rows["finish_reason"].dropna()) == {"length"} for rows in runs.values())
    if name == "policies.yaml":
        lengths = [tuple(rows.sort_values("intended_s")["prompt_tokens"][:10]) for rows in runs.values()]
        assert len(set(lengths)) == 1  # one list of requests for every policy
    else:
        cached = [runs[f"mooncake/enable_prefix_caching={on}/0"]["cached_tokens"].sum() for on in ("true", "false")]
        assert cached[0] > 0 == cached[1]


def test_a_trace_that_is_nowhere_is_named_with_the_places_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LATENCY_LAB_TRACES", raising=False)
    path = tmp_path / "trace_replay.yaml"
    path.write_text((FOLDER / "trace_replay.yaml").read_text())
    with pytest.raises(StudyError, match=r":15: .*path: found 'traces/Azure.*LATENCY_LAB_TRACES may name a folder"):
        load_study(path)
    monkeypatch.setenv("LATENCY_LAB_TRACES", str(tmp_path))
    with pytest.raises(
        StudyError, match=r"is no file, nor is .*AzureLLMInferenceTrace_conv\.csv \(LATENCY_LAB_TRACES\)"
    ):
        load_study(path)
