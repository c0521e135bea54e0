"""The summary and the comparison as LaTeX tables, a ``tabular`` each, to be put into a table of one's own; the methods as a
paragraph.

Rules are booktabs', numbers stand in siunitx's ``S`` columns. A number that may not be shown is an empty cell in braces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.predictions.base import BAND
from analysis.report_text import short_name
from analysis.summary import Latency, RunSummary
from analysis.tables import with_unit

HEAD = "% needs \\usepackage{booktabs,siunitx}; times in ms\n"
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    # What pdflatex has no letter for, or none in every font.
    **{"√": r"$\surd$", "²": r"$^2$", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "−": r"$-$"},
    **{"λ": r"$\lambda$", "φ": r"$\varphi$", "ρ": r"$\rho$", "µ": r"$\mu$", "’": "'", "“": "``", "”": "''"},
}
QUANTILES = (("ttft", "TTFT", (0.5, 0.9, 0.99)), ("tpot", "TPOT", (0.5,)), ("e2e", "E2E", (0.5, 0.9, 0.99)))


def summary_table(summaries: Sequence[RunSummary], loads: Sequence[tuple[float, float]]) -> str:
    """A row a run: count, realised load, completed rate, percentiles that the count supports. ``loads`` as in the report."""
    heads = ["run", "{$n$}", "{load}", "{completed (1/s)}"]
    heads += [f"{{{name} p{100 * q:g}}}" for _, name, quantiles in QUANTILES for q in quantiles]
    rows = []
    for summary, (_, realised) in zip(summaries, loads, strict=True):
        numbers = [f"{summary.measured.arrived}", _number(realised, 2), _number(summary.load.completed, 2)]
        for key, _, quantiles in QUANTILES:
            latency: Latency = getattr(summary, key)
            numbers += [_number(1e3 * (latency.shown(q) or math.nan), 1) for q in quantiles]
        rows.append([escape(short_name(summary, summaries)), *numbers])
    return _tabular(1, heads, rows)


def comparison_table(comparison: pd.DataFrame) -> str:
    """A row a statement of a model: measured, predicted, band, error, verdict (columns of ``analysis.compare.compare``)."""
    heads = ["run", "model", "quantity", "{$n$}", "{measured}", "{predicted}", f"{{{BAND:.0%} band, low}}", "{high}"]
    heads = [head.replace("%", "\\%") for head in heads] + ["{error (\\%)}", "verdict"]
    rows = []
    for row in comparison.to_dict("records"):
        scale, digits = (1e3, 1) if row["unit"] == "s" else (1, 3)
        values = [_number(scale * row[name], digits) for name in ("measured", "prediction", "low", "high")]
        words = [escape(text) for text in (row["run"], row["model"], with_unit(row["quantity"], row["unit"]))]
        error = _number(100 * row["error"], 1)
        rows.append([*words, str(row["n"] or "{}"), *values, error, escape(str(row["verdict"]))])
    return _tabular(3, heads, rows, words_last=1)


def paragraph(sentences: Sequence[str]) -> str:
    """Running text, a sentence group a line."""
    return "\n".join(escape(sentence) for sentence in sentences) + "\n"


def escape(text: str) -> str:
    """``text`` with the signs that mean something to LaTeX made harmless."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "{}"


def _tabular(words_first: int, heads: Sequence[str], rows: Sequence[Sequence[str]], words_last: int = 0) -> str:
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    numbers = columns[words_first : len(columns) - words_last]
    formats = "".join(f"\n  S[table-format={_format(column)}]" for column in numbers)
    spec = f"@{{}}{'l' * words_first}{formats}\n  {'l' * words_last}@{{}}"
    lines = [" & ".join(row) + r" \\" for row in rows]
    body = "\n".join([r"\toprule", " & ".join(heads) + r" \\", r"\midrule", *lines, r"\bottomrule"])
    return f"{HEAD}\\begin{{tabular}}{{{spec}}}\n{body}\n\\end{{tabular}}\n"


def _format(column: Sequence[str]) -> str:
    """Digits before and after the point of the widest number, with a sign where one is."""
    shown = [cell for cell in column if cell != "{}"]
    before = max((len(cell.lstrip("-").split(".")[0]) for cell in shown), default=1)
    after = max((len(cell.partition(".")[2]) for cell in shown), default=0)
    return f"{'-' if any(cell.startswith('-') for cell in shown) else ''}{before}.{after}"
