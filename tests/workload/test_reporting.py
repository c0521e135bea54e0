"""What a person reads while a study runs: every total told is one that is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from workload.describe import plan_text
from workload.driver import Progress
from workload.experiment import load_study
from workload.loops import BatchLoop
from workload.reporting import PlainLines, describe, extent
from workload.runner import _title


def at(elapsed_s: float, phase: str = "measure") -> Progress:
    return Progress(elapsed_s, 98, 97, 1, phase, math.nan)


def test_a_run_tells_its_phase_and_never_more_seconds_than_its_total() -> None:
    assert describe(at(10.2), 28.4) == "measure 10/28 s, sent 98, finished 97, in flight 1"
    assert describe(at(29.6, "cooldown"), 28.4).startswith("cooldown, 1 s after the measured 28 s, sent 98")


def test_a_grid_whose_time_nobody_knows_counts_its_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe(at(10.2), None, 120) == "10 s, sent 98 of 120, finished 97, in flight 1"
    assert extent(None, 120) == "120 requests"
    PlainLines().begin("calibration/chat/grid", None, 120)
    assert capsys.readouterr().out == "calibration/chat/grid: 120 requests\n"
    assert len(BatchLoop([[], []])) == 0


def test_a_title_is_the_folder_and_names_nothing_twice() -> None:
    names = {"experiment": "chat", "point": "load=0.3", "replication": 0}
    assert _title({**names, "kind": "measurement"}) == "chat/load=0.3/0"
    assert _title({**names, "kind": "calibration", "point": "calibration/chat", "replication": "grid"}) == (
        "calibration/chat/grid"
    )


def test_the_plan_explains_its_column_of_half_widths() -> None:
    text = plan_text(load_study(Path(__file__).parents[2] / "experiments.yaml"))
    assert "±: how sharp the mean time in system would be" in text
    assert "points, " in text
    assert "M/M/1" in text
