"""Number in system over time, from the engine's own gauge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.areas import step_integral
from analysis.figures.points import Point
from analysis.figures.style import DASHES, MUTED, SERIES, Drawn, Style, axes, finish

SPANS = 240  # averages of equal stretches: what the eye can tell apart at this size
MOST = 5


def number_in_system(name: str, title: str, points: Sequence[Point], style: Style) -> Drawn | None:
    """Inbox, waiting and running together, of the first replication of at most ``MOST`` points (the busiest); None
    without a gauge."""
    recorded = [(point, *point.pairs[0]) for point in points if point.pairs[0][0].recorded("gauge")]
    if not recorded:
        return None
    rest = sorted(recorded, key=lambda item: item[2].load.offered)[:-MOST]
    recorded = sorted(recorded, key=lambda item: item[2].load.offered)[-MOST:]
    seats = {summary.seats for _, _, summary in recorded}
    data = []
    with axes(style) as (figure, (ax,)):
        width = 0.0
        for i, (point, run, _) in enumerate(recorded):
            end = float((run.meta.get("window") or {}).get("end_s") or run.window[1])
            edges = np.linspace(0.0, end, SPANS + 1)
            number = run.gauge[["inbox", "waiting", "running"]].to_numpy(dtype=float).sum(axis=1)
            area = step_integral(run.gauge["t_s"].to_numpy(dtype=float), number, edges)
            label = f"{point.name}{', unstable' if point.unstable else ''}"
            # The last stretch is left out: what is aborted at the end did not leave by itself.
            level = (np.diff(area) / np.diff(edges))[:-1]
            ax.stairs(level, edges[:-1], color=SERIES[i], ls=DASHES[i], label=label, lw=0.8 * style.line, baseline=None)
            data.append(pd.DataFrame({"run": label, "t_s": edges[:-2], "number_in_system": level}))
            width = max(width, float(edges[1]))
        if len(seats) == 1 and (number_of_seats := seats.pop() or 1) > 1:
            ax.axhline(number_of_seats, color=MUTED, lw=1.0, ls=(0, (1, 2)), label=f"{number_of_seats} seats")
        top = max(float(table["number_in_system"].max()) for table in data)
        ax.set_ylim(0, max(1.0, (1.35 if len(recorded) > 2 else 1.2) * top))
        ax.set_xlim(left=0)
        ax.set_xlabel("time since the first arrival was due (s)")
        ax.set_ylabel("requests in the engine")
        ax.legend(loc="upper left", ncols=1 if len(recorded) < 3 else 2)
    windows = "; ".join(
        f"{point.name} {s.window[0]:.3g} to {s.window[1]:.3g} s (n = {s.measured.arrived})" for point, _, s in recorded
    )
    several = any(len(point.pairs) > 1 for point, _, _ in recorded)
    return finish(
        figure,
        f"number-{name}",
        f"Number in system over time ({title})",
        label="number of requests in the engine over time",
        look="A stable run keeps coming back down; under overload the line climbs for as long as the load lasts.",
        caption=f"Engine's gauge (inbox, waiting, running), averaged over {1e3 * width:.0f} ms or less. Measured: {windows}."
        + (" First replication of each." if several else "")
        + (f" Not shown: the {len(rest)} lighter ones." if rest else "")
        + " One path each: what the stability verdict takes for growth is z > 2 of the chance that arrivals and sizes leave.",
        data=data,
    )
