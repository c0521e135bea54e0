"""The report of a study of known truth: what is written, what is shown and what is withheld, and that it needs no network."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from analysis.report import StudyReport, main
from analysis.report_text import WIDTH
from analysis.runs import open_run
from analysis.summary import latencies
from tests.conftest import KnownReport, recorded


@pytest.fixture
def folder(known_report: KnownReport) -> Path:
    return known_report.folder


@pytest.fixture
def report(known_report: KnownReport) -> StudyReport:
    return known_report.report


def test_nothing_that_was_measured_is_touched(known_report: KnownReport) -> None:
    assert len(known_report.before) > 20
    assert recorded(known_report.folder) == known_report.before


def test_every_run_has_its_analysis(folder: Path, report: StudyReport) -> None:
    for point in ("one-seat/load=0.5", "sweep/load=0.5", "overload/load=1.5"):
        content = json.loads((folder / point / "0" / "analysis.json").read_text())
        assert content["little"]["verdict"] == "closed"
        assert content["stable"] is (not point.startswith("overload"))
    assert {row["model"] for row in content["compare"]} == set()
    compared = json.loads((folder / "one-seat" / "load=0.5" / "0" / "analysis.json").read_text())["compare"]
    assert {row["model"] for row in compared} == {"mg1", "lindley"}
    assert all(row["verdict"] for row in compared)


def test_the_text_fits_a_terminal_and_withholds_averages_of_the_unstable_run(report: StudyReport) -> None:
    lines = report.text.splitlines()
    assert max(len(line) for line in lines) <= WIDTH + 2
    row = next(line for line in lines if re.match(r"overload/load=1.5 +\d", line))
    assert row.split()[-8:] == ["-"] * 8
    assert any("UNSTABLE" in line for line in lines)
    assert sum("(ms)" in line for line in lines) == 1


def test_failed_verdicts_are_listed_and_strict_exits_with_1(
    folder: Path, report: StudyReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("overload/load=1.5/0: unstable" in failure for failure in report.failures)
    assert not any("Little" in failure or "drift" in failure for failure in report.failures)
    monkeypatch.setattr("analysis.report.report_study", lambda results, style: report)
    assert main([str(folder)]) == 0
    assert main([str(folder), "--strict"]) == 1
    assert "unstable" in capsys.readouterr().err


def test_histograms_hold_the_measured_requests_of_stable_runs(folder: Path, report: StudyReport) -> None:
    written = {str(file.relative_to(folder / "hdr")) for file in (folder / "hdr").rglob("*.hgrm")}
    metrics = ("ttft", "e2e")
    assert written == {f"{name}/load=0.5.{metric}.hgrm" for name in ("one-seat", "sweep") for metric in metrics}
    text = (folder / "hdr" / "sweep" / "load=0.5.e2e.hgrm").read_text()
    e2e = latencies(open_run(folder / "sweep" / "load=0.5" / "0"))["e2e"]
    largest = float(re.search(r"Max\s+=\s+([\d.]+)", text).group(1))  # type: ignore[union-attr]
    assert largest == pytest.approx(1e3 * e2e.max(), abs=2e-3)
    assert re.search(rf"Total count\s+=\s+{e2e.size}\]", text)


def test_the_csv_has_a_row_a_run_and_no_average_of_the_unstable_one(folder: Path, report: StudyReport) -> None:
    with (folder / "summary.csv").open() as file:
        rows = {row["experiment"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"one-seat", "sweep", "overload"}
    assert rows["overload"]["e2e_mean_s"] == rows["overload"]["e2e_p50_s"] == ""
    assert float(rows["sweep"]["e2e_p50_s"]) > 0
    for row in rows.values():
        ends = sum(int(row[name]) for name in ("finished", "refused", "failed", "aborted", "in_flight"))
        assert int(row["arrived"]) == ends


class Page(HTMLParser):
    """Collects tags, ids and open elements."""

    VOID = frozenset({"meta", "link", "img", "br", "hr", "input", "path", "use", "line", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attributes)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.references += [str(values[name]) for name in ("src", "href", "xlink:href") if name in values]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_one_file_without_scripts_or_network(report: StudyReport) -> None:
    html = report.html.read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert not re.search(r"@import|url\((?!#)", html)


def test_the_page_shows_each_figure_with_what_to_look_for_and_its_source(report: StudyReport) -> None:
    html = report.html.read_text(encoding="utf-8")
    figures = re.findall(r'<figure id="([^"]+)">.*?</figure>', html, flags=re.DOTALL)
    latencies = ("sweep-ttft", "sweep-e2e", "percentiles-ttft", "percentiles-e2e", "ccdf-e2e", "where-time-goes")
    loads = ("sweep-throughput", "sweep-busy", "sweep-attainment", "number-sweep")
    models = ("sweep-e2e-by-output", "tail-one-seat", "lindley-one-seat", "step-time-sweep", "models")
    for wanted in (*latencies, *loads, *models):
        assert wanted in figures
    for figure in re.findall(r"<figure .*?</figure>", html, flags=re.DOTALL):
        assert '<p class="look">' in figure
        assert "<svg" in figure
        caption = re.search(r"<figcaption>(.+?)</figcaption>", figure, flags=re.DOTALL)
        assert caption is not None
        assert re.search(r"stamps|gauge", caption.group(1))
        assert re.search(r"\bn = \d|\d+ steps|windows of", caption.group(1))
    assert "unstable: no averages, no percentiles" in html


def test_what_a_figure_leaves_out_is_named_with_the_reason(report: StudyReport) -> None:
    html = report.html.read_text(encoding="utf-8")
    for name in ("percentiles-e2e", "ccdf-e2e", "where-time-goes"):
        (figure,) = re.findall(rf'<figure id="{name}">.*?</figure>', html, flags=re.DOTALL)
        assert "Not shown: overload load=1.5: unstable" in figure


def test_every_dot_lies_inside_its_axis_even_that_of_the_overload(folder: Path, report: StudyReport) -> None:
    svg = (folder / "figures" / "sweep-ttft.svg").read_text(encoding="utf-8")
    ticks = [float(label) for label in re.findall(r">(\d\.\d+)</text>", svg)]
    assert max(ticks) >= 1.4  # the overload's load is 1.5


def test_no_band_reaches_below_zero(report: StudyReport) -> None:
    html = report.html.read_text(encoding="utf-8")
    bands = re.findall(r"<td>(-?[\d.]+ to [\d.]+|≤ [\d.]+)</td>", html)
    assert bands
    assert not [band for band in bands if band.startswith("-")]


def test_the_methods_say_what_a_reader_of_a_paper_asks(report: StudyReport) -> None:
    text = report.html.read_text(encoding="utf-8").split("<h2>Methods</h2>")[1]
    wanted = (
        "requests a run",
        "s of warm-up",
        "95 %",
        "drift",
        "never waited",
        "inverted CDF",
        "Holm",
        "unstable above 2",
    )
    for words in wanted:
        assert words in text


def test_the_page_is_honest_about_an_engine_that_computes_nothing(report: StudyReport) -> None:
    html = report.html.read_text(encoding="utf-8")
    assert "The engine is simulated" in html
    assert "no token was computed" in html


def test_a_missing_folder_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
