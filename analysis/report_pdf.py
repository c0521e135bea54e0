"""The report as a PDF, for mail and print where no browser is at hand: the page's words, its table, a page a figure.

Drawn by matplotlib from the same facts and the same figures as the page, so that it can always be made.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from analysis.figures.style import INK, MUTED, Drawn

WIDTH, HEIGHT = 8.27, 5.83  # inches: A5, landscape
MARGIN = 0.5
COLUMNS = 112  # letters of running text in a line
BESIDE = 36  # letters of a caption in a line, beside its figure
_RC: Any = {"pdf.fonttype": 42, "font.family": "sans-serif", "text.color": INK}


def write_pdf(
    path: Path,
    title: str,
    sections: Sequence[tuple[str, Sequence[str]]],
    table: Sequence[str],
    figures: Sequence[Drawn],
) -> None:
    """Write the report.

    Args:
        title: of the document and of its first page.
        sections: heading and paragraphs of each, in running text; the last one goes behind the figures.
        table: lines of equally wide letters, at most 112 of them each.
        figures: as drawn for the page; their figures get words around them and are of no use afterwards.
    """
    *front, last = sections
    with matplotlib.rc_context(_RC), PdfPages(path, metadata={"Title": title, "CreationDate": None}) as pages:
        lines: list[_Line] = [_Line(title, 14, "bold"), _Line("")]
        for heading, paragraphs in front:
            lines += _section(heading, paragraphs)
        for page in _paged(lines):
            _text_page(pages, page)
        for page in _paged([_Line(line, 7.4, mono=True) for line in table]):
            _text_page(pages, page)
        for figure in figures:
            _figure_page(pages, figure)
        for page in _paged(_section(*last)):
            _text_page(pages, page)


class _Line:
    """One printed line."""

    def __init__(self, text: str, size: float = 8.5, weight: str = "normal", *, mono: bool = False):
        self.text, self.size, self.weight, self.mono = text, size, weight, mono

    @property
    def height(self) -> float:
        """Inches that it takes."""
        return 1.42 * self.size / 72


def _section(heading: str, paragraphs: Sequence[str]) -> list[_Line]:
    found = [_Line(heading, 10.5, "bold")]
    for paragraph in paragraphs:
        found += [_Line(part) for part in textwrap.wrap(paragraph, COLUMNS, subsequent_indent="   ")]
    return [*found, _Line("")]


def _paged(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    """As many lines a page as it holds."""
    page: list[_Line] = []
    used = 0.0
    for line in lines:
        if used + line.height > HEIGHT - 2 * MARGIN:
            yield page
            page, used = [], 0.0
        if page or line.text:
            page.append(line)
            used += line.height
    if any(line.text for line in page):
        yield page


def _text_page(pages: PdfPages, lines: Sequence[_Line]) -> None:
    figure = Figure(figsize=(WIDTH, HEIGHT))
    y = HEIGHT - MARGIN
    for line in lines:
        y -= line.height
        family = "monospace" if line.mono else "sans-serif"
        words = line.text.replace("$", r"\$")
        figure.text(MARGIN / WIDTH, y / HEIGHT, words, size=line.size, weight=line.weight, family=family)
    pages.savefig(figure)


def _figure_page(pages: PdfPages, drawn: Drawn) -> None:
    """The figure at the left, what to look for above it, its caption beside it; a tall one gets a taller page."""
    figure = drawn.figure
    width, height = figure.get_size_inches()
    top = max(height, 3.1)
    page = max(HEIGHT, top + 1.0 + 2 * MARGIN)
    left, bottom = MARGIN, (page - top - 1.0) / 2
    for legend in figure.legends:  # below its axes, not at the foot of the page
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)

    def put(x: float, y: float, words: str, size: float, **look: object) -> None:
        """Text at inches from the figure's lower left corner, downwards from y."""
        words = words.replace("$", r"\$")
        figure.text(x / width, y / height, words, size=size, va="top", linespacing=1.35, **look)  # type: ignore[arg-type]

    put(0.0, top + 1.0, drawn.title, 12, weight="bold", color=INK)
    put(0.0, top + 0.7, "\n".join(textwrap.wrap(drawn.look, COLUMNS - 6)), 8.8, color=INK)
    caption = f"{drawn.caption}\n\nfigures/{drawn.name}"
    wrapped = "\n".join("\n".join(textwrap.wrap(part, BESIDE)) for part in caption.split("\n"))
    put(width + 0.25, top, wrapped, 7.4, color=MUTED)
    box = Bbox.from_bounds(-left, -bottom, WIDTH, page)
    pages.savefig(figure, bbox_inches=box)
