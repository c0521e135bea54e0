"""What several tests share: one small study on the real model, run once, and the report of a study of known truth."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the tests of the engine alone run where the packages of the analysis are not installed
    from analysis.report import StudyReport


@dataclass(frozen=True)
class KnownReport:
    """The report of ``tests/analysis/known_study.py``; ``before`` holds a hash of every recorded file before it was made."""

    folder: Path
    report: StudyReport
    before: dict[Path, str]


def recorded(folder: Path) -> dict[Path, str]:
    """A hash of everything that was measured."""
    files = [file for file in sorted(folder.rglob("*")) if file.suffix == ".parquet" or file.name == "run.json"]
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="session")
def known_report(tmp_path_factory: pytest.TempPathFactory) -> KnownReport:
    """One seat and a batch at load .5, an overload: written, and reported on."""
    from analysis.report import report_study
    from tests.analysis.known_study import write_study

    folder = write_study(tmp_path_factory.mktemp("study"), sweep=(0.5,), measure_s=15.0)
    stale = folder / "figures"
    stale.mkdir()
    (stale / "of-an-earlier-report.svg").write_text("old")
    before = recorded(folder)
    return KnownReport(folder, report_study(folder), before)


@pytest.fixture(scope="session")
def smoke_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of tests/smoke.yaml, run through the command itself."""
    from workload.run import main

    out = tmp_path_factory.mktemp("smoke")
    assert main([str(Path(__file__).with_name("smoke.yaml")), "--out", str(out)]) == 0
    return out / "smoke"
