"""What a person reads while a study runs: every total told is one that is known."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from workload.ahead import Agenda, Ahead
from workload.describe import plan_text
from workload.driver import Progress
from workload.experiment import load_study
from workload.loops import BatchLoop
from workload.reporting import LiveLine, PlainLines, Reporter, RunTitle, describe, extent
from workload.runner import _title


def at(elapsed_s: float, phase: str = "measure", capped: int = 0, ttft_s: float = math.nan) -> Progress:
    return Progress(elapsed_s, phase, 102, 98, 97, 4, capped, 3, ttft_s)


def test_a_run_tells_its_phase_rates_queue_and_never_more_seconds_than_its_total() -> None:
    run = RunTitle("chat/load=0.3/0", 28.4)
    assert describe(at(10.2), run) == (
        "chat/load=0.3/0: measure 10/28 s, offered 10.0/s, completed 9.5/s, in flight 4, 3 of them without a token"
    )
    assert describe(at(29.6, "cooldown"), run).startswith("chat/load=0.3/0: cooldown, 1 s after the measured 28 s, ")
    assert describe(at(10.2, capped=5, ttft_s=0.1234), run).endswith(", 5 waiting for the cap, TTFT 123 ms")


def test_the_time_left_is_that_of_this_run_and_of_all_behind_it() -> None:
    assert describe(at(10.0), RunTitle("a", 30.0, ahead=Ahead(100.0, more=False))).endswith(", study: 2:00 min left")
    assert describe(at(40.0), RunTitle("a", 30.0, ahead=Ahead(59.0, more=True))).endswith(
        "study: at least 0:59 min left"
    )


def test_a_grid_whose_time_nobody_knows_counts_its_requests(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunTitle("calibration/chat/grid", None, 120, Ahead(60.0, more=False))
    assert describe(at(10.2), run).startswith("calibration/chat/grid: 10 s, 98 of 120 requests, offered 10.0/s")
    assert describe(at(10.2), run).endswith("study: at least 1:00 min left")
    assert extent(run) == "120 requests"
    PlainLines().begin(run)
    assert capsys.readouterr().out == "calibration/chat/grid: 120 requests\n"
    assert len(BatchLoop([[], []])) == 0


def play(reporter: Reporter, seconds: int, now: list[float]) -> None:
    """A run of so many seconds, told twice a second."""
    reporter.begin(RunTitle("chat", float(seconds)))
    for half in range(2 * seconds):
        now[0] = half / 2
        reporter.progress(at(now[0]))
    reporter.end()


def test_plain_lines_come_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    play(PlainLines(clock=lambda: now[0]), 35, now)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "chat: about 35 s",
        *(f"chat: measure {s}/35 s" for s in (10, 20, 30)),
    ]


def test_a_terminal_sees_every_statement_and_keeps_none() -> None:
    written = io.StringIO()
    play(LiveLine(Console(file=written, force_terminal=True, width=200)), 3, [0.0])
    text = written.getvalue()
    assert "chat: measure 2/3 s, offered 40.8/s, completed 38.8/s" in text
    assert text.count("offered") >= 5  # at 0 s there are no rates yet
    assert text.rstrip().endswith("\x1b[2K")  # the line is wiped


def test_the_agenda_counts_down_and_knows_more_once_the_capacity_is_measured(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nmodel: m\ncalibration: {warmup: 2, seconds: 10}\nexperiments:\n"
        "  - {name: a, prompt: 1, output: 1, arrivals: {process: poisson, load: [0.25, 0.5]}, warmup: {seconds: 4},\n"
        "     measure: {requests: 100}}\n"
    )
    study = load_study(tmp_path / "study.yaml")
    agenda = Agenda(study, study.runs)
    assert agenda.ahead(lambda run: None) == Ahead(2 * 12 + 2 * 4, more=True)
    agenda.begin_loop()
    agenda.begin_run(study.runs[0])
    assert agenda.ahead(lambda run: 5.0) == Ahead(12 + 4 + 20, more=False)


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


def test_the_plan_says_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nmodel: m\ncalibration: {warmup: 2, seconds: 10}\nexperiments:\n"
        "  - {name: impatient, prompt: 1, output: 1, arrivals: {process: poisson, load: 0.5}, warmup: {seconds: 4},\n"
        "     measure: {requests: 100}, timeout: {seconds: 2}, max_concurrency: 8}\n"
    )
    lines = plan_text(load_study(tmp_path / "study.yaml")).splitlines()
    assert "4 + 200/C" in lines[1]
    assert lines[1].endswith(" -")
    assert "C: the capacity for the point's requests, per second, which the study measures first" in lines
    (said,) = (line for line in lines if line.startswith("impatient: "))
    assert "at most 8 requests in flight, clients give up after 2 s" in said
    assert "how many are answered the plan does not know" in said
    assert "warm-up and measurement 4 s and what is over C; 24 s for 1 capacity before and after" in lines[-1]
