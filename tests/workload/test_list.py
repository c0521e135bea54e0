"""``--list`` prints the experiments of a study, and runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from workload.run import main

STUDY = """
version: 1
model: random:tiny
engine: {executor: emulated, step_time: {base_s: 0.002}, max_num_seqs: 2}
workload: {prompt: 4, output: 2}
experiments:
  - name: sweep
    arrivals: {process: poisson, rate: [2, 5]}
    measure: {seconds: 60}
    replications: 3
  - name: steady
    arrivals: {process: constant, rate: 3}
    measure: {seconds: 60}
"""


def test_each_experiment_is_listed_with_its_runs_and_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    assert main([str(study), "--list", "--out", str(tmp_path / "out")]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["experiment", "runs", "points"]
    assert [row.split() for row in rows] == [["sweep", "6", "rate=2,", "rate=5"], ["steady", "1", "rate=3"]]
    assert not (tmp_path / "out").exists()
