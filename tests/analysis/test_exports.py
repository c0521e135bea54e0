"""What the report writes beside its page: the figures as files with their data, and the tables for LaTeX."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures.where_time_goes import PARTS, parts_of
from analysis.latex import comparison_table, escape
from analysis.report import report_study
from analysis.runs import open_run
from analysis.summary import latencies
from tests.analysis.known_study import write_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_study(tmp_path_factory.mktemp("study"), sweep=(0.5,), measure_s=15.0)
    stale = folder / "figures"
    stale.mkdir()
    (stale / "of-an-earlier-report.svg").write_text("old")
    report_study(folder)
    return folder


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


def test_a_study_without_models_has_an_empty_comparison() -> None:
    from analysis.compare import COLUMNS

    assert rows_of(comparison_table(pd.DataFrame(columns=list(COLUMNS)))) == []
