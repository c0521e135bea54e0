"""Number in system over time, from the engine's own gauge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures.style import DASHES, MUTED, SERIES, Drawn, axes, finish
from analysis.littles_law import step_integral
from analysis.runs import Run
from analysis.summary import RunSummary

POINTS = 240  # averages of equal stretches: what the eye can tell apart at this size
MOST = 5


def number_in_system(name: str, title: str, runs: Sequence[tuple[Run, RunSummary]]) -> Drawn | None:
    """Inbox, waiting and running together, of at most ``MOST`` runs (the busiest); None without a gauge."""
    recorded = [(run, summary) for run, summary in runs if run.recorded("gauge")]
    if not recorded:
        return None
    recorded = sorted(recorded, key=lambda item: item[1].load.offered)[-MOST:]
    seats = {summary.seats for _, summary in recorded}
    data = []
    with axes() as (figure, ax):
        width = 0.0
        for i, (run, summary) in enumerate(recorded):
            end = float((run.meta.get("window") or {}).get("end_s") or run.window[1])
            edges = np.linspace(0.0, end, POINTS + 1)
            number = run.gauge[["inbox", "waiting", "running"]].to_numpy(dtype=float).sum(axis=1)
            area = step_integral(run.gauge["t_s"].to_numpy(dtype=float), number, edges)
            label = f"{summary.point}{', unstable' if summary.stability.verdict == 'unstable' else ''}"
            # The last stretch is left out: what is aborted at the end did not leave by itself.
            level = (np.diff(area) / np.diff(edges))[:-1]
            ax.stairs(
                level, edges[:-1], color=SERIES[i], linestyle=DASHES[i], label=label, linewidth=1.3, baseline=None
            )
            data.append(pd.DataFrame({"run": label, "t_s": edges[:-2], "number_in_system": level}))
            width = max(width, float(edges[1]))
        if len(seats) == 1 and (number_of_seats := seats.pop() or 1) > 1:
            ax.axhline(number_of_seats, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
            ax.annotate(
                f"{number_of_seats} seats",
                (0.995, number_of_seats),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8.5,
                color=MUTED,
            )
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.set_xlabel("time since the first arrival was due (s)")
        ax.set_ylabel("requests in the engine")
        ax.legend(loc="upper left")
    windows = "; ".join(f"{s.point} {s.window[0]:g} to {s.window[1]:g} s" for _, s in recorded)
    return finish(
        figure,
        f"number-{name}",
        f"Number in system over time ({title})",
        label="number of requests in the engine over time",
        look="A stable run keeps coming back down; under overload the line climbs for as long as the load lasts.",
        caption=f"Engine's gauge (inbox, waiting, running), averaged over {1e3 * width:.0f} ms or less. Measured: {windows}.",
        data=data,
    )
