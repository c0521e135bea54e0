"""Latency against load: measured medians with intervals, simulated curve, capacity; unstable runs marked, not averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.curve import Curve
from analysis.figures.points import NAMES, Array, LoadAxis, Middle, Point, left_out, would_notice
from analysis.figures.style import GRID, INK, MUTED, PAPER, SERIES, Drawn, Style, axes, finish

HEADROOM = 1.35  # of the axis over the highest dot and the simulated line


def hockey_stick(
    name: str,
    points: Sequence[Point],
    axis: LoadAxis,
    curve: Curve | None,
    metric: str,
    comparison: pd.DataFrame,
    style: Style,
) -> Drawn | None:
    """One metric (``ttft`` or ``e2e``) of the points of one sweep; None where none has a middle."""
    shown = [(point, middle) for point in points if point.stable and (middle := point.middle(metric)) is not None]
    unstable = [point for point in points if point.unstable]
    if not shown:
        return None
    with axes(style) as (figure, (ax,)):
        if curve is not None:
            bands = 1e3 * curve.low[metric], 1e3 * curve.high[metric]
            ax.fill_between(curve.load, *bands, color=SERIES[1], alpha=0.16, lw=0, label="simulated, other requests")
            ax.plot(curve.load, 1e3 * curve.median[metric], color=SERIES[1], label="simulated, same requests")
        _dots(ax, shown, axis)
        top = HEADROOM * _highest(shown, curve, metric)
        ax.set_ylim(0, top)
        ax.set_xlim(0, axis.right(points))
        capacity_line(ax, axis)
        _limit(ax, points, metric, top)
        for i, point in enumerate(unstable):
            label = "unstable: not averaged" if i == 0 else None
            ax.plot(axis.at(point.offered), 0.95 * top, "X", color=INK, ms=style.marker + 2, ls="none", label=label)
        ax.set_xlabel(axis.label)
        ax.set_ylabel(f"median {NAMES[metric]} (ms)")
        ax.legend(loc="upper left")
    used = [point for point, _ in shown]
    return finish(
        figure,
        f"{name}-{metric}",
        f"{NAMES[metric]} against load ({name})",
        label=f"median {NAMES[metric]} against load",
        look=_look(metric, curve, bool(unstable)),
        caption=_caption(shown, axis, curve, metric, top)
        + would_notice(comparison, "simulation", _runs(used), f"mean {NAMES[metric]}")
        + left_out(points, None, [*used, *unstable]),
        data=_data(shown, axis, curve, metric),
    )


def capacity_line(ax: Axes, axis: LoadAxis) -> None:
    """The capacity with its interval, named above the picture, where no dot can be."""
    capacity = axis.capacity
    if capacity is None:
        return
    ax.axvspan(capacity.low / capacity.rate, capacity.high / capacity.rate, color=GRID, alpha=0.5, lw=0)
    ax.axvline(1.0, color=MUTED, lw=1.2, ls=(0, (4, 2)))
    words = f"capacity {capacity.rate:.3g}/s"
    ax.annotate(words, (1.0, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom", color=MUTED)


def _runs(points: Sequence[Point]) -> list[str]:
    return [summary.name for point in points for summary in point.summaries]


def _highest(shown: Sequence[tuple[Point, Middle]], curve: Curve | None, metric: str) -> float:
    tops = [1e3 * (middle.high if math.isfinite(middle.high) else middle.value) for _, middle in shown]
    return max([*tops, *([] if curve is None else (1e3 * curve.median[metric]).tolist())])


def _dots(ax: Axes, shown: Sequence[tuple[Point, Middle]], axis: LoadAxis) -> None:
    named: set[str] = set()
    for point, middle in shown:
        load, value = axis.at(point.offered), 1e3 * middle.value
        has = math.isfinite(middle.high)
        label = f"measured{'' if has else ', mean'}{', stability undecided' if point.undecided else ''}"
        marker = "D" if point.undecided else "o"
        errors = [[value - 1e3 * middle.low], [1e3 * middle.high - value]] if has else None
        ax.errorbar(
            load,
            value,
            errors,
            [[side] for side in axis.sides(point.offered)],
            fmt=marker,
            color=SERIES[0],
            mfc=SERIES[0] if has else PAPER,
            elinewidth=1.1,
            capsize=2.5,
            label=label if label not in named else None,
        )
        named.add(label)


def _limit(ax: Axes, points: Sequence[Point], metric: str, top: float) -> None:
    """The objective, where it lies within what is shown anyway."""
    slos = [summary.slo for point in points for summary in point.summaries if summary.slo is not None]
    for limit in sorted({slo.limits[metric] for slo in slos if metric in slo.limits}):
        if limit <= top:
            ax.axhline(limit, color=MUTED, lw=1.0, ls=(0, (1, 2)), label=f"objective {limit:g} ms")


def _look(metric: str, curve: Curve | None, unstable: bool) -> str:
    look = "Latency stays nearly flat and bends up before the capacity is reached"
    if metric == "e2e":
        look = "Sharing a batch slows everyone down: the whole answer takes longer long before anyone has to queue"
    if curve is not None:
        look += "; where the simulation holds, the bars of the dots reach its line"
    if unstable:
        look += "; at the cross no average exists, since the longer one measures the larger it gets"
    return look + "."


def _caption(
    shown: Sequence[tuple[Point, Middle]], axis: LoadAxis, curve: Curve | None, metric: str, top: float
) -> str:
    counts = ", ".join(str(point.count(metric)) for point, _ in shown)
    kinds = " or ".join(dict.fromkeys(middle.kind for _, middle in shown))
    words = (
        f"Client's stamps, from the intended arrival; n = {counts} requests; {kinds}. Upright bars: 95 % confidence."
    )
    if axis.capacity is not None:
        words += (
            " Level bars and the grey strip: what the capacity's 95 % interval "
            f"({axis.capacity.low:.1f} to {axis.capacity.high:.1f} req/s, n = {axis.capacity.n}) leaves open of the load."
        )
    if any(not math.isfinite(middle.high) for _, middle in shown):
        words += " Hollow: too few effective observations for an interval, the mean is shown."
    if any(point.undecided for point, _ in shown):
        words += " Diamond: the backlog grew by more than is usual, not by enough to call it unstable."
    if curve is not None:
        words += f" Band: lowest to highest median of {curve.fresh} simulated runs with other requests"
        out = _leaves(curve.load, 1e3 * curve.high[metric], top)
        words += (
            "."
            if out is None
            else f"; it leaves the picture at load {out:.2f}, up to {1e3 * curve.high[metric].max():.0f} ms."
        )
    return words


def _leaves(load: Array, height: Array, top: float) -> float | None:
    """The first load at which a line through these heights is above ``top``."""
    over = np.flatnonzero(height > top)
    if not over.size:
        return None
    i = int(over[0])
    if i == 0:
        return float(load[0])
    share = (top - height[i - 1]) / (height[i] - height[i - 1])
    return float(load[i - 1] + share * (load[i] - load[i - 1]))


def _data(shown: Sequence[tuple[Point, Middle]], axis: LoadAxis, curve: Curve | None, metric: str) -> pd.DataFrame:
    """Loads with their intervals, latencies in ms: what was measured, then the simulated curve."""
    rows = []
    for point, middle in shown:
        left, right = axis.sides(point.offered)
        load = axis.at(point.offered)
        values = {f"{metric}_ms": middle.value, "low_ms": middle.low, "high_ms": middle.high}
        rows.append(
            {"series": f"measured {middle.kind}", "load": load, "load_low": load - left, "load_high": load + right}
            | {key: 1e3 * value for key, value in values.items()}
        )
    if curve is not None:
        for i, load in enumerate(curve.load):
            parts = [1e3 * part[metric][i] for part in (curve.median, curve.low, curve.high)]
            rows.append(
                {"series": "simulated median", "load": load, "load_low": np.nan, "load_high": np.nan}
                | dict(zip((f"{metric}_ms", "low_ms", "high_ms"), parts, strict=True))
            )
    return pd.DataFrame(rows)
