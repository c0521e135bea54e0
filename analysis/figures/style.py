"""Figures for the page (inline SVG that follows its font, its colours, light or dark, any width) and for papers beside it.

Matplotlib draws in the light colours; on the way into the page each becomes a CSS variable, with the light value to fall
back on. Series colours follow Okabe and Ito (2008), told apart by marker and dash as well, so that they hold in grey. Two
styles: ``screen``, and ``paper``, one column of a journal wide.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#d9dee3", "#ffffff"
SERIES = ("#0072b2", "#d55e00", "#00805f", "#a8518a", "#8a6d00", "#3d7ea6")
# the CSS variable of each colour; the page's style sheet gives the dark values
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, 1)
}
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))
MARKERS = ("o", "^", "s", "D", "v", "P")


@dataclass(frozen=True)
class Style:
    """How large a figure is drawn (inches) and how large its letters are (points)."""

    name: str
    width: float
    height: float
    font: float
    small: float
    line: float
    marker: float


STYLES = {
    "screen": Style("screen", 4.7, 3.1, 9.5, 8.5, 1.6, 5.0),  # about the width of a phone
    "paper": Style("paper", 3.3, 2.3, 7.5, 6.5, 1.1, 3.5),  # one column of two
}
SCREEN = STYLES["screen"]

_RC: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Drawn:
    """A figure: ``svg`` to put inline, what to ``look`` for, the ``caption`` with source, count and what would be noticed;
    and for use elsewhere the ``files`` by suffix (svg, pdf), the ``data`` it shows and the laid-out ``figure`` itself."""

    name: str
    title: str
    svg: str
    look: str
    caption: str
    files: Mapping[str, bytes]
    data: pd.DataFrame
    figure: Figure

    def write(self, folder: Path) -> None:
        """``<name>.svg``, ``<name>.pdf`` and ``<name>.csv`` into ``folder``, which exists."""
        for suffix, content in self.files.items():
            (folder / f"{self.name}.{suffix}").write_bytes(content)
        self.data.to_csv(folder / f"{self.name}.csv", index=False)


@contextmanager
def axes(style: Style = SCREEN, height: float = 1.0, rows: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the page's style with ``rows`` empty pairs of axes that share their horizontal one; ``height`` is a share
    of the style's."""
    sizes: dict[Any, Any] = {
        "font.size": style.font,
        "axes.labelsize": style.font,
        "xtick.labelsize": style.small,
        "ytick.labelsize": style.small,
        "legend.fontsize": style.small,
        "lines.linewidth": style.line,
        "lines.markersize": style.marker,
    }
    with matplotlib.rc_context({**_RC, **sizes}):
        figure = Figure(figsize=(style.width, style.height * height), layout="constrained")
        yield figure, list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def finish(
    figure: Figure,
    name: str,
    title: str,
    *,
    label: str,
    look: str,
    caption: str,
    data: pd.DataFrame | list[pd.DataFrame],
) -> Drawn:
    """The figure as it goes into the page and beside it; ``label`` is for screen readers."""
    svg, pdf = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        figure.set_layout_engine("none")  # it has been laid out; once is enough
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    files = {"svg": svg.getvalue(), "pdf": pdf.getvalue()}
    table = data if isinstance(data, pd.DataFrame) else pd.concat(data, ignore_index=True)
    return Drawn(name, title, _inline(svg.getvalue().decode(), name, label), look, caption, files, table, figure)


def _inline(svg: str, name: str, label: str) -> str:
    """An SVG element without a size of its own, in the page's colours, with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}" class="figure"', 1)
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    colours = "|".join(VARIABLES)
    return re.sub(colours, lambda found: f"var({VARIABLES[found[0]]}, {found[0]})", svg)
