"""P(latency > t) on a logarithmic axis, each line cut where the count ends: the shape of the tail."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.figures.percentiles import counted, lines
from analysis.figures.points import NAMES, Point, known_to, left_out
from analysis.figures.style import DASHES, SERIES, Drawn, Style, axes, finish
from analysis.tails import LEAST_BEYOND


def ccdf(points: Sequence[Point], metric: str, style: Style) -> Drawn | None:
    """One line a stable point (``metric``: ttft, tpot or e2e); None where no point has enough observations."""
    shown = lines(points, metric)
    if not shown:
        return None
    data = []
    with axes(style) as (figure, (ax,)):
        for (point, q, height), colour, dash in zip(shown, SERIES, DASHES, strict=False):
            ax.step(1e3 * height, 1 - q, where="post", color=colour, ls=dash, label=point.name)
            data.append(pd.DataFrame({"run": point.name, f"{metric}_ms": 1e3 * height, "p_above": 1 - q}))
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xlim(left=0)
        ax.set_ylim(top=1.2)
        ax.set_xlabel(f"{NAMES[metric]} t (ms)")
        ax.set_ylabel(f"P({NAMES[metric]} > t)")
        figure.legend(loc="outside lower center", ncols=2 if style.width > 4 else 1)
    used = [point for point, _, _ in shown]
    return finish(
        figure,
        f"ccdf-{metric}",
        f"Tail of {NAMES[metric]}",
        label=f"share of requests whose {NAMES[metric]} is above t",
        look="A straight line falls by the same factor for each further millisecond; one that flattens has no typical worst "
        "case.",
        caption=f"Client's stamps, measured requests ({counted(used, metric)}). Each line ends where fewer than "
        f"{LEAST_BEYOND} effective observations lie above.{known_to(used, metric)}{left_out(points, metric, used)}",
        data=data,
    )
