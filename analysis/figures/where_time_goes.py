"""Where a request's time goes: the parts of the mean E2E latency, which add up to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures.points import Point, interval_of, left_out
from analysis.figures.style import INK, MUTED, PAPER, SERIES, Drawn, Style, axes, finish
from analysis.runs import Run

PARTS = {  # colour and hatch of each, in the order in which a request meets them
    "lag and cap": (INK, ""),
    "transit": (MUTED, ""),
    "wait: step in progress": (SERIES[4], ""),
    "wait: seats": (SERIES[1], "...."),
    "wait: budget": (SERIES[3], ""),
    "wait: KV blocks": (SERIES[5], ""),
    "wait: after preemption": (SERIES[1], "////"),
    "prefill": (SERIES[2], "\\\\\\\\"),
    "decode": (SERIES[0], ""),
}
REASONS = {"seats": "wait: seats", "budget": "wait: budget", "kv": "wait: KV blocks"}
LEAST_SHARE = 1e-3  # of some run's latency; a part that is nowhere as large gets no entry in the legend


def where_time_goes(points: Sequence[Point], style: Style) -> Drawn | None:
    """A bar a stable point; None where no run has the engine's stamps."""
    shown = [(point, *found) for point in points if point.stable and (found := _pooled(point)) is not None]
    if not shown:
        return None
    largest = {part: max(parts[part] / sum(parts.values()) for _, parts, _ in shown) for part in PARTS}
    rows = range(len(shown))
    with axes(style, height=max(0.75, 0.14 * len(shown) + 0.5)) as (figure, (ax,)):
        left = np.zeros(len(shown))
        for part, (colour, hatch) in PARTS.items():
            width = np.array([1e3 * parts[part] for _, parts, _ in shown])
            label = part if largest[part] >= LEAST_SHARE else None
            look = {"color": colour, "hatch": hatch, "edgecolor": PAPER, "lw": 0.4}
            ax.barh(rows, width, left=left, height=0.62, label=label, **look)  # type: ignore[arg-type]
            left += width
        ax.set_yticks(rows, [point.name for point, _, _ in shown])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("mean E2E (ms)")
        figure.legend(loc="outside lower center", ncols=3 if style.width > 4 else 2)
    table = pd.DataFrame(
        [
            {"run": point.name, "n": n, **{f"{part} (ms)": 1e3 * parts[part] for part in PARTS}}
            for point, parts, n in shown
        ]
    )
    return finish(
        figure,
        "where-time-goes",
        "Where the time goes",
        label="parts of the mean end-to-end latency of each run",
        look="As the load grows, first every step gets longer (prefill, decode); waiting for seats comes only near capacity.",
        caption="Client's and engine's stamps of the finished measured requests (n = "
        + ", ".join(str(n) for _, _, n in shown)
        + "); the parts add up to the mean. Transit is both ways. A wait has one reason, what held the request back last."
        + _known(points)
        + left_out(points, None, [point for point, _, _ in shown]),
        data=table,
    )


def _known(points: Sequence[Point]) -> str:
    """How well the means themselves are known."""
    found = [interval_of(summary.e2e.mean) for point in points for summary in point.summaries if summary.stable]
    shares = [half / mean for mean, half in found if mean > 0]
    if not shares:
        return " No run holds enough independent requests for an interval of its mean: compare shares, not lengths."
    return f" Means of single runs are known to ± {100 * min(shares):.0f} % at best."


def _pooled(point: Point) -> tuple[dict[str, float], int] | None:
    """``parts_of`` over the replications of a point, each request counting once."""
    found = [parts_of(run) for run, _ in point.pairs]
    known = [item for item in found if item is not None]
    if not known:
        return None
    total = sum(n for _, n in known)
    return {part: sum(parts[part] * n for parts, n in known) / total for part in PARTS}, total


def parts_of(run: Run) -> tuple[dict[str, float], int] | None:
    """Mean seconds of each of ``PARTS`` over the measured requests that finished, and their number; None without stamps."""
    rows = run.measured
    rows = rows[rows["finish_reason"].isin(["stop", "length"]) & rows["received_s"].notna()]
    if rows.empty:
        return None
    again = rows["wait_total"] - rows["wait_first"]
    parts = dict.fromkeys(PARTS, 0.0)
    parts["lag and cap"] = float((rows["sent_s"] - rows["intended_s"]).mean())
    parts["transit"] = float((rows["received_s"] - rows["sent_s"] + rows["finished_s"] - rows["done_s"]).mean())
    for reason, wait in rows["wait_first"].groupby(rows["wait_reason"].fillna("")):
        part = REASONS.get(str(reason), "wait: step in progress")
        parts[part] += float(wait.sum()) / len(rows)
    parts["wait: after preemption"] = float(again.mean())
    parts["prefill"] = float((rows["emitted_first_s"] - rows["scheduled_s"]).mean())
    parts["decode"] = float((rows["done_s"] - rows["emitted_first_s"] - again).mean())
    return parts, len(rows)
