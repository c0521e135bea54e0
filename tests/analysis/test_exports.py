"""What the report writes beside its page: the figures as files with their data, and the tables for LaTeX."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.compare import COLUMNS, to_table
from analysis.figures.percentiles import by_percentile
from analysis.figures.points import points_of
from analysis.figures.style import DASHES, MARKERS, SERIES, STYLES
from analysis.figures.where_time_goes import PARTS, parts_of
from analysis.hdr import read_hlog, read_intervals
from analysis.latex import comparison_table, escape
from analysis.predictions.base import Band, Prediction, judge
from analysis.report import report_study
from analysis.report_text import comparison_lines
from analysis.runs import Run, open_run
from analysis.study import open_study
from analysis.summary import RunSummary, latencies, summarize
from tests.analysis.known_study import draw_plan, run_plan
from tests.conftest import KnownReport


@pytest.fixture
def folder(known_report: KnownReport) -> Path:
    return known_report.folder


def test_every_figure_of_the_page_lies_beside_it_as_svg_pdf_and_data(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    names = re.findall(r'<figure id="([^"]+)">', page)
    assert len(names) > 6
    assert {file.name for file in (folder / "figures").iterdir()} == {
        f"{name}.{suffix}" for name in names for suffix in ("svg", "pdf", "csv")
    }
    for name in names:
        svg = (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert ET.fromstring(svg).get("width", "").endswith("pt")
        assert "var(" not in svg
        pdf = (folder / "figures" / f"{name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF-")
        assert pdf.rstrip().endswith(b"%%EOF")
        assert b"/Type3" not in pdf  # publishers refuse such fonts
        assert len(pd.read_csv(folder / "figures" / f"{name}.csv")) > 0


def test_the_colours_of_an_inline_figure_are_the_pages_and_nothing_else(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    for figure in re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL):
        assert "var(--ink, #1b1f24)" in figure
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", figure)
        assert not re.findall(r"#[0-9a-f]{6}\b", bare)


def test_the_tail_in_the_data_is_the_share_of_requests_above(folder: Path) -> None:
    data = pd.read_csv(folder / "figures" / "ccdf-e2e.csv")
    data = data[data["run"] == "sweep load=0.5"].iloc[1:]
    e2e = 1e3 * latencies(open_run(folder / "sweep" / "load=0.5" / "0"))["e2e"]
    above = [np.count_nonzero(e2e > t * (1 + 1e-12)) / e2e.size for t in data["e2e_ms"]]
    assert len(above) > 20
    assert data["p_above"].to_numpy() == pytest.approx(above)


def test_the_parts_of_the_latency_add_up_to_it(folder: Path) -> None:
    for experiment in ("one-seat", "sweep"):
        run = open_run(folder / experiment / "load=0.5" / "0")
        found = parts_of(run)
        assert found is not None
        parts, n = found
        e2e = latencies(run)["e2e"]
        assert n == np.isfinite(e2e).sum()
        assert set(parts) == set(PARTS)
        assert min(parts.values()) >= -1e-12
        assert sum(parts.values()) == pytest.approx(e2e[np.isfinite(e2e)].mean())


def test_the_pdf_has_a_page_for_each_figure_and_letters_that_can_be_copied(folder: Path) -> None:
    pdf = (folder / "report.pdf").read_bytes()
    figures = len(list((folder / "figures").glob("*.svg")))
    pages = len(re.findall(rb"/Type /Page\b", pdf))
    assert figures + 3 <= pages <= figures + 8  # words, table, methods
    assert b"/Type3" not in pdf


def test_the_log_holds_the_requests_of_the_percentile_file_by_the_time_they_were_due(folder: Path) -> None:
    run = open_run(folder / "sweep" / "load=0.5" / "0")
    intervals = read_intervals(folder / "hdr" / "sweep" / "load=0.5.e2e.hlog")
    due = np.sort(run.measured["intended_s"].to_numpy(dtype=float))
    edges = np.linspace(*run.window, len(intervals) + 1)
    assert len(intervals) == 10
    assert [part.count for part in intervals] == np.histogram(due, edges)[0].tolist()
    whole = read_hlog(folder / "hdr" / "sweep" / "load=0.5.e2e.hlog")
    e2e = latencies(run)["e2e"]
    assert whole.count == e2e.size
    assert whole.max == pytest.approx(e2e.max(), abs=1e-6)


def test_the_figures_of_a_paper_are_one_column_wide_and_keep_their_letters_legible(known_report: KnownReport) -> None:
    paper = STYLES["paper"]
    assert paper.width == 3.3
    assert paper.small >= 6
    points = points_of(_pairs(known_report.folder))
    drawn = by_percentile(points, "e2e", paper)
    assert drawn is not None
    svg = ET.fromstring(drawn.files["svg"])
    assert float(svg.get("width", "").removesuffix("pt")) == pytest.approx(3.3 * 72)


def _pairs(folder: Path) -> list[tuple[Run, RunSummary]]:
    runs = open_study(folder).runs
    return [(run, summarize(run)) for run in runs]


def test_colours_stay_apart_in_grey_or_have_marks_of_their_own() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert len(set(DASHES)) == len(set(MARKERS)) == len(set(SERIES)) == 6
    assert max(lightness(colour) for colour in SERIES) < 0.6  # all dark enough on white


def test_replications_are_pooled_and_their_medians_get_students_interval() -> None:
    pairs = []
    for seed in (1, 2, 3):
        run = run_plan(draw_plan(20.0, 15.0, seed=seed), 8, 20.0)
        run.meta |= {"experiment": "sweep", "point": "load=0.5", "replication": seed}
        pairs.append((run, summarize(run)))
    (point,) = points_of(pairs)
    values, _ = point.values("e2e")
    each = [latencies(run)["e2e"] for run, _ in pairs]
    assert sorted(values) == sorted(np.concatenate(each))
    medians = [np.quantile(x, 0.5, method="inverted_cdf") for x in each]
    half = stats.t.ppf(0.975, 2) * np.std(medians, ddof=1) / math.sqrt(3)
    middle = point.middle("e2e")
    assert middle is not None
    assert middle.kind == "mean of the replications' medians"
    assert (middle.value, middle.low) == pytest.approx((np.mean(medians), np.mean(medians) - half))


def test_an_unknown_style_is_one_line(folder: Path) -> None:
    with pytest.raises(ValueError, match="no style is called 'poster'; there are screen, paper"):
        report_study(folder, style="poster")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="wants pdflatex with booktabs and siunitx")
def test_the_tables_and_the_methods_compile(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "paper.tex").write_text(
        "\\documentclass[landscape]{article}\n\\usepackage[margin=1cm]{geometry}\n\\usepackage{booktabs,siunitx,graphicx}\n"
        "\\begin{document}\\tiny\n"
        + "".join(f"\\input{{{folder}/tables/{name}.tex}}\n\n" for name in ("summary", "compare", "methods"))
        + f"\\includegraphics{{{folder}/figures/sweep-ttft.pdf}}\n\\end{{document}}\n"
    )
    found = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout[-2000:]
    assert not re.search(r"^! |Missing character", found.stdout, flags=re.MULTILINE)


def rows_of(table: str) -> list[list[str]]:
    body = table[table.index(r"\midrule") + len(r"\midrule") : table.index(r"\bottomrule")]
    return [re.split(r"(?<!\\) ?& ?", line.removesuffix(r" \\")) for line in body.strip().splitlines()]


def test_the_latex_tables_have_as_many_cells_as_columns_and_the_numbers_of_the_csv(folder: Path) -> None:
    summary = (folder / "tables" / "summary.tex").read_text(encoding="utf-8")
    compare = (folder / "tables" / "compare.tex").read_text(encoding="utf-8")
    for table in (summary, compare):
        spec = table[table.index("{@{}") : table.index(r"\toprule")]
        columns = len(re.findall(r"(?<![a-z])S\[|l(?=l|\n|@)", spec))
        head = table[table.index(r"\toprule") : table.index(r"\midrule")]
        assert len(re.findall(r"(?<!\\)&", head)) + 1 == columns
        assert all(len(row) == columns for row in rows_of(table))
    csv = pd.read_csv(folder / "summary.csv")
    for row, (_, wanted) in zip(rows_of(summary), csv.iterrows(), strict=True):
        assert int(row[1]) == wanted["arrived"]
        shown = wanted["e2e_p50_s"]
        assert row[8] == ("{}" if math.isnan(shown) else f"{1e3 * shown:.1f}")


def test_names_are_harmless_in_latex() -> None:
    assert escape("a_b 50% & c#1 {x} $y ^z \\n") == (
        r"a\_b 50\% \& c\#1 \{x\} \$y \textasciicircum{}z \textbackslash{}n"
    )


def test_a_rate_is_not_printed_as_milliseconds() -> None:
    said = Prediction("closed", "completions", "1/s", (), 2.5, 2.0, 100, Band(2.1, 2.9, 0.5, 0.2, 100))
    table = to_table([("loop/clients=4/0", judge([said])[0])])
    assert comparison_lines(table)[-1].split()[2:-1] == ["completions,", "1/s", "2.000", "2.500", "+25.0", "%"]
    assert rows_of(comparison_table(table))[0][2:9] == [
        "completions, 1/s",
        "100",
        "2.000",
        "2.500",
        "2.100",
        "2.900",
        "25.0",
    ]


def test_a_study_without_models_has_an_empty_comparison() -> None:
    assert rows_of(comparison_table(pd.DataFrame(columns=list(COLUMNS)))) == []
