"""Figures as inline SVG that follows the page: its font, its colours, light or dark, any width.

Matplotlib draws with stand-in colours; on the way out each becomes a CSS variable of the page, with the light value to
fall back on, so that a figure taken out of the page still reads. Series colours follow Okabe and Ito (2008), told apart by
marker and dash as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# stand-in colour: (CSS variable, light value). The page's style sheet gives the dark values.
INK, MUTED, GRID, PAPER = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05", "#0a0a06")
COLOURS = {
    INK: ("--ink", "#1b1f24"),
    MUTED: ("--muted", "#59636e"),
    GRID: ("--grid", "#d9dee3"),
    PAPER: ("--paper", "#ffffff"),
    SERIES[0]: ("--series-1", "#0072b2"),
    SERIES[1]: ("--series-2", "#d55e00"),
    SERIES[2]: ("--series-3", "#00805f"),
    SERIES[3]: ("--series-4", "#a8518a"),
    SERIES[4]: ("--series-5", "#8a6d00"),
    SERIES[5]: ("--series-6", "#3d7ea6"),
}
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (8, 2)))
MARKERS = ("o", "^", "s", "D", "v", "P")
SIZE = (4.7, 3.1)  # inches: about the width of a phone at the font size below

_RC: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
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
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True)
class Drawn:
    """A figure for the page: ``svg`` to put inline, what to ``look`` for, and the ``caption`` with source and count."""

    name: str
    title: str
    svg: str
    look: str
    caption: str


@contextmanager
def axes(width: float = SIZE[0], height: float = SIZE[1]) -> Iterator[tuple[Figure, Axes]]:
    """One empty pair of axes in the page's style."""
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def to_svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an SVG element: no fixed size, the page's colours, ids of its own, ``label`` for screen readers."""
    text = io.StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}" class="figure"', 1)
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    for colour, (variable, light) in COLOURS.items():
        svg = svg.replace(colour, f"var({variable}, {light})")
    return svg
