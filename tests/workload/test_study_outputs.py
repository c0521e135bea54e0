"""The study's ``outputs``: what a report looks like is decided in the study and found by the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.report import style_of
from analysis.study import open_study
from tests.conftest import KnownReport
from workload.experiment import load_study
from workload.run import main

EMULATED = """
version: 1
model: random:tiny
outputs: {style: paper}
engine: {executor: emulated, step_time: {base_s: 0.002}, max_num_seqs: 2}
workload: {prompt: 4, output: 2}
experiments:
  - name: one
    arrivals: {process: constant, rate: 20}
    warmup: {seconds: 0}
    measure: {seconds: 0.5}
"""


def test_the_style_reaches_every_run_and_the_report(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(EMULATED)
    assert load_study(study).outputs.style == "paper"
    assert main([str(study), "--out", str(tmp_path), "--simulate", "--quiet"]) == 0
    results = tmp_path / "study.simulated"
    assert json.loads((results / "one" / "rate=20" / "0" / "run.json").read_text())["outputs"] == {"style": "paper"}
    assert '<main class="paper">' in (results / "report.html").read_text(encoding="utf-8")


def test_a_run_that_says_nothing_is_drawn_for_the_screen(known_report: KnownReport) -> None:
    assert style_of(open_study(known_report.folder), None).name == "screen"


def test_a_style_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(EMULATED.replace("paper", "poster"))
    with pytest.raises(ValueError, match=r"study\.yaml:4: outputs\.style: found 'poster'"):
        load_study(study)
