"""Latency by percentile on HdrHistogram's axis, 1 / (1 - q), each line cut where the count ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures.points import LEAST, NAMES, Array, Point, known_to, left_out
from analysis.figures.style import DASHES, SERIES, Drawn, Style, axes, finish
from analysis.tails import LEAST_BEYOND

TICKS = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)


def by_percentile(points: Sequence[Point], metric: str, style: Style) -> Drawn | None:
    """One line a stable point, its replications merged; None where no point has enough observations."""
    shown = lines(points, metric)
    if not shown:
        return None
    last = max(float(q[-1]) for _, q, _ in shown)
    data = []
    with axes(style) as (figure, (ax,)):
        for (point, q, height), colour, dash in zip(shown, SERIES, DASHES, strict=False):
            ax.step(1 / (1 - q), 1e3 * height, where="pre", color=colour, ls=dash, label=point.name)
            data.append(pd.DataFrame({"run": point.name, "q": q, f"{metric}_ms": 1e3 * height}))
        ax.set_xscale("log")
        ax.set_xlim(1, 1.15 / (1 - max(last, 0.5)))
        ax.set_ylim(bottom=0)
        ticks = [q for q in TICKS if q <= last] if last >= 0.5 else [0.0]
        ax.xaxis.set_major_locator(FixedLocator([1 / (1 - q) for q in ticks]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * (1 - 1 / x):g} %"))
        ax.set_xlabel("percentile, on the scale of 1 / (1 − q)")
        ax.set_ylabel(f"{NAMES[metric]} (ms)")
        figure.legend(loc="outside lower center", ncols=2 if style.width > 4 else 1)
    used = [point for point, _, _ in shown]
    return finish(
        figure,
        f"percentiles-{metric}",
        f"{NAMES[metric]} by percentile",
        label=f"{NAMES[metric]} by percentile",
        look="A straight line is an exponential tail; a line that bends up is heavier, and averages say little about it.",
        caption=f"Client's stamps ({counted(used, metric)}). Each line ends where fewer than {LEAST_BEYOND} effective "
        f"observations lie beyond; full histograms: hdr/.{known_to(used, metric)}{left_out(points, metric, used)}",
        data=data,
    )


def lines(points: Sequence[Point], metric: str) -> list[tuple[Point, Array, Array]]:
    """The points that get a line, as many as there are colours, each with q and the latency there (s)."""
    found: list[tuple[Point, Array, Array]] = []
    for point in points:
        if not point.stable or len(found) == len(SERIES):
            continue
        values, worth = point.values(metric)
        if worth >= LEAST:
            found.append((point, *percentile_line(values, worth)))
    return found


def counted(points: Sequence[Point], metric: str) -> str:
    """How many requests each point has, and what they are worth."""
    parts = []
    for point in points:
        values, worth = point.values(metric)
        parts.append(f"{point.name}: n = {values.size}, worth {worth:.0f}")
    return "; ".join(parts)


def percentile_line(values: Array, worth: float) -> tuple[Array, Array]:
    """q and the value there, up to the last q with ``LEAST_BEYOND`` effective observations beyond it."""
    ordered = np.sort(values)
    q = np.arange(1, ordered.size + 1) / ordered.size
    kept = worth * (1 - q) >= LEAST_BEYOND - 1e-9
    kept &= np.isfinite(ordered)
    return np.concatenate([[0.0], q[kept]]), np.concatenate([[ordered[0]], ordered[kept]])
