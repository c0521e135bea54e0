"""Plain aligned text tables for a terminal, and how a value stands in one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Lines of a table: header, a rule, the rows. Columns in ``left`` are flush left, all others flush right."""
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return [line(table[0]), rule, *(line(row) for row in table[1:])]


def in_unit(value: float, unit: str) -> str:
    """Seconds as milliseconds, anything else (a rate per second) as it is; a dash for nan."""
    if math.isnan(value):
        return "-"
    return f"{1e3 * value:.1f}" if unit == "s" else f"{value:.3f}"


def with_unit(quantity: str, unit: str) -> str:
    """A quantity, with its unit where that is not the milliseconds of the table's head."""
    return quantity if unit == "s" else f"{quantity}, {unit}"
