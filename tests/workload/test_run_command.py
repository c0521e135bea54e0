"""``python -m workload.run`` from outside: exit codes, one clear line for each mistake, and nothing lost to a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from analysis.runs import open_run
from workload.run import main

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0

STUDY = """\
version: 1
name: tiny
model: smollm2-135m-instruct
seed: {seed}
engine: {{executor: emulated, step_time: {{base_s: 0.002, decode_seqs: 0.0002}}, max_num_seqs: 4}}
workload:
  prompt: {{dist: uniform, min: 4, max: 12}}
  output: {{dist: geometric, mean: 6, max: 32}}
experiments:
  - name: light
    arrivals: {{process: poisson, rate: {rate}}}
    warmup: {{seconds: 0.5}}
    measure: {{seconds: {seconds}}}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path)


def write_study(folder: Path, *, rate: object = 30, seconds: float = 2, seed: int = 1) -> Path:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(rate=rate, seconds=seconds, seed=seed))
    return path


def start(study: Path, out: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, up to its first recorded request."""
    command = [sys.executable, "-m", "workload.run", str(study), "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    requests = out / "tiny" / "light" / "rate=30" / "0.partial" / "requests.arrows"
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit and process.poll() is None:
        if requests.exists() and requests.stat().st_size > 20_000:
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"no rows within {WAIT_S} s: {process.communicate()}")


def the_partial_run(out: Path) -> Path:
    return out / "tiny" / "light" / "rate=30" / "0.partial"


def test_a_study_runs_to_its_report_and_a_second_time_moves_the_first_aside(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert main([str(study), "--out", str(out), "--quiet"]) == 0
    assert "<html" in (out / "tiny" / "report.html").read_text()
    run = open_run(out / "tiny" / "light" / "rate=30" / "0")
    assert run.meta["status"] == "complete"
    assert not run.partial
    assert len(run.requests) > 40
    assert main([str(study), "--out", str(out), "--quiet"]) == 0
    assert len(list(out.glob("tiny.*"))) == 1


def test_the_same_seed_offers_the_same_requests(study: Path, tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        assert main([str(study), "--out", str(tmp_path / name), "--quiet"]) == 0
        requests = open_run(tmp_path / name / "tiny" / "light" / "rate=30" / "0").requests
        requests = requests[requests["phase"] != "cooldown"].sort_values("intended_s")
        rows.append(requests[["intended_s", "prompt_tokens", "max_tokens"]].to_numpy().tolist())
    assert rows[0] == rows[1]


def test_resume_keeps_what_is_complete(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert main([str(study), "--out", str(out), "--quiet"]) == 0
    meta = out / "tiny" / "light" / "rate=30" / "0" / "run.json"
    before = meta.stat().st_mtime_ns
    assert main([str(study), "--out", str(out), "--quiet", "--resume"]) == 0
    assert meta.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "clue"),
    [
        (("rate: 30", "rate: 0"), "study.yaml:11"),
        (("process: poisson", "process: poison"), "did you mean 'poisson'"),
        (("max_num_seqs: 4", "max_num_seq: 4"), "did you mean 'max_num_seqs'"),
        (("measure: {seconds: 2}", "measure: {seconds: 2"), "study.yaml:"),
        (("base_s: 0.002", "bases: 0.002"), "did you mean 'base_s'"),
        (("{seconds: 2}", "{requests: 0}"), "study.yaml:13: experiments[0].measure: found 0; more than 0 seconds"),
        (
            ("rate: 30", "rate: !include other.yaml"),
            "study.yaml:11: experiments[0].arrivals.rate: found the YAML tag",
        ),
        (("name: light", "name: !!python/object:os.system x"), "found the YAML tag !!python/object:os.system"),
        (("seed: 1", "seed: !!int abc"), "not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_and_exit_code_2(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], clue: str
) -> None:
    study.write_text(study.read_text().replace(*change))
    assert main([str(study), "--out", str(tmp_path / "results"), "--quiet"]) == 2
    error = capsys.readouterr().err.strip()
    assert clue in error
    assert "\n" not in error


def test_an_unknown_model_is_one_line_and_exit_code_2(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = study.read_text().replace("smollm2-135m-instruct", "smollm3")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("engine:"))
    study.write_text(text)
    for further in ([], ["--dry-run"]):
        assert main([str(study), "--out", str(tmp_path / "results"), "--quiet", *further]) == 2
        error = capsys.readouterr().err.strip()
        assert "study.yaml:3: model: no model 'smollm3': give a preset" in error
        assert "\n" not in error
    assert not (tmp_path / "results").exists()


def test_a_missing_file_an_unknown_experiment_and_an_unwritable_folder_are_exit_code_2(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocker = tmp_path / "a-file"
    blocker.write_text("in the way")
    for arguments, clue in (
        ([str(tmp_path / "nowhere.yaml")], "nowhere.yaml"),
        ([str(study), "--only", "heavy"], "light"),
        ([str(study), "--out", str(blocker / "results")], "a-file"),
        (
            [str(study), "--out", str(blocker)],
            f"can't write results into {blocker / 'tiny'}: Not a directory; give another",
        ),
    ):
        assert main([*arguments, "--quiet"]) == 2
        error = capsys.readouterr().err.strip()
        assert clue in error
        assert "\n" not in error


def test_dry_run_prints_the_plan_and_runs_nothing(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(study), "--out", str(tmp_path / "results"), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "light" in plan
    assert "1 point, 1 run, warm-up and measurement 2.5 s" in plan
    assert not (tmp_path / "results").exists()


def test_a_killed_engine_fails_the_run_with_exit_code_3_and_keeps_its_rows(tmp_path: Path) -> None:
    study, out = write_study(tmp_path, seconds=60), tmp_path / "results"
    process = start(study, out)
    engines = [child for child in psutil.Process(process.pid).children() if "engine.process" in child.cmdline()]
    assert len(engines) == 1
    engines[0].send_signal(signal.SIGKILL)
    _, error = process.communicate(timeout=WAIT_S)
    assert process.returncode == 3
    assert "exit code -9" in error
    run = open_run(the_partial_run(out))
    assert run.meta["status"] == "failed"
    assert run.partial
    assert (run.requests["finish_reason"] == "length").sum() > 20
    assert len(run.steps) > 0


def test_killing_everything_leaves_readable_files(tmp_path: Path) -> None:
    study, out = write_study(tmp_path, seconds=60), tmp_path / "results"
    process = start(study, out)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    time.sleep(1.5)
    for member in family:
        os.kill(member.pid, signal.SIGKILL)
    process.communicate()
    run = open_run(the_partial_run(out))
    assert run.meta["status"] == "running"
    assert run.partial
    assert (run.requests["finish_reason"] == "length").sum() > 20
    assert len(run.steps) > 20
    assert len(run.gauge) > 20


def test_an_interrupt_is_exit_code_130_and_a_labelled_partial_run(tmp_path: Path) -> None:
    study, out = write_study(tmp_path, seconds=60), tmp_path / "results"
    process = start(study, out)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    meta = json.loads((the_partial_run(out) / "run.json").read_text())
    assert meta["status"] == "interrupted"
    assert len(open_run(the_partial_run(out)).requests) > 20


def test_a_study_too_short_to_say_anything_is_told_in_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(
        study.read_text()
        .replace("warmup: {seconds: 0.5}", "warmup: {seconds: 0}")
        .replace("{seconds: 2}", "{seconds: 0.001}")
    )
    assert main([str(study), "--out", str(tmp_path / "results"), "--quiet"]) == 2
    error = capsys.readouterr().err.strip()
    assert "no arrivals in the measured window" in error
    assert "\n" not in error
