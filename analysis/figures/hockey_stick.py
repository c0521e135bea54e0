"""Latency against load: measured medians with intervals, simulated curve, capacity; unstable runs marked, not averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.capacity import Capacity
from analysis.curve import Curve
from analysis.figures.style import GRID, INK, MUTED, PAPER, SERIES, Drawn, axes, finish
from analysis.summary import Latency, RunSummary
from analysis.tails import QuantileInterval

NAMES = {"ttft": "TTFT", "e2e": "E2E"}


def hockey_stick(
    name: str, summaries: Sequence[RunSummary], capacity: Capacity, curve: Curve | None, metric: str
) -> Drawn:
    """One metric (``ttft`` or ``e2e``) of all runs that share ``capacity``."""
    stable = [summary for summary in summaries if summary.stable]
    unstable = [summary for summary in summaries if summary.stability.verdict == "unstable"]
    with axes() as (figure, ax):
        if curve is not None:
            low, high = 1e3 * curve.low[metric], 1e3 * curve.high[metric]
            ax.fill_between(
                curve.load, low, high, color=SERIES[1], alpha=0.16, linewidth=0, label="simulated, other requests"
            )
            ax.plot(curve.load, 1e3 * curve.median[metric], color=SERIES[1], label="simulated, same requests")
        for i, summary in enumerate(stable):
            _dot(ax, summary, getattr(summary, metric), capacity, first=i == 0)
        _capacity_line(ax, capacity)
        _limit(ax, summaries, metric)
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0, right=max([1.1, *(s.load.offered / capacity.rate for s in unstable)]) * 1.04)
        for summary in unstable:
            _unstable(ax, summary, capacity)
        ax.set_xlabel("realised load: arrivals per second / capacity")
        ax.set_ylabel(f"median {NAMES[metric]} (ms)")
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.97))
    counts = ", ".join(str(getattr(summary, metric).n) for summary in stable)
    band = (
        "" if curve is None else f" Band: lowest to highest median of {curve.fresh} simulated runs with other requests."
    )
    return finish(
        figure,
        f"{name}-{metric}",
        f"{NAMES[metric]} against load ({name})",
        label=f"median {NAMES[metric]} against load",
        look=_look(metric, curve is not None, bool(unstable)),
        caption="Client's stamps, from the intended arrival; "
        f"n = {counts} requests. Bars: 95 % confidence, vertical of the median, "
        f"horizontal of the load through the capacity ({capacity.low:.1f} to {capacity.high:.1f} req/s, n = {capacity.n}). "
        f"Hollow: too few effective observations for an interval, the mean is shown.{band}",
        data=_data(stable, capacity, curve, metric),
    )


def _data(stable: Sequence[RunSummary], capacity: Capacity, curve: Curve | None, metric: str) -> pd.DataFrame:
    """Loads with their intervals, latencies in ms: measured medians (or the mean), then the simulated curve."""
    rows = []
    for summary in stable:
        latency: Latency = getattr(summary, metric)
        found = latency.quantiles.get(0.5)
        has = isinstance(found, QuantileInterval)
        offered = summary.load.offered
        rows.append(
            {
                "series": "measured median" if has else "measured mean",
                "load": offered / capacity.rate,
                "load_low": offered / capacity.high,
                "load_high": offered / capacity.low,
                f"{metric}_ms": 1e3 * (found.value if isinstance(found, QuantileInterval) else latency.sample_mean),
                "low_ms": 1e3 * found.low if isinstance(found, QuantileInterval) else np.nan,
                "high_ms": 1e3 * found.high if isinstance(found, QuantileInterval) else np.nan,
            }
        )
    if curve is not None:
        for i, load in enumerate(curve.load):
            values = [1e3 * part[metric][i] for part in (curve.median, curve.low, curve.high)]
            rows.append(
                {"series": "simulated median", "load": load}
                | dict(zip((f"{metric}_ms", "low_ms", "high_ms"), values, strict=True))
            )
    return pd.DataFrame(rows)


def _look(metric: str, simulated: bool, unstable: bool) -> str:
    look = "Latency stays nearly flat and bends up before the capacity is reached"
    if metric == "e2e":
        look = "Sharing a batch slows everyone down: the whole answer takes longer long before anyone has to queue"
    if simulated:
        look += "; the dots should lie on the simulated line"
    if unstable:
        look += "; at the cross no average exists, since the longer one measures the larger it gets"
    return look + "."


def _dot(ax: Axes, summary: RunSummary, latency: Latency, capacity: Capacity, *, first: bool) -> None:
    found = latency.quantiles.get(0.5)
    load = summary.load.offered / capacity.rate
    sides = [[load - summary.load.offered / capacity.high], [summary.load.offered / capacity.low - load]]
    label = "measured" if first else None
    if isinstance(found, QuantileInterval) and np.isfinite(found.high):
        value = 1e3 * found.value
        errors = [[value - 1e3 * found.low], [1e3 * found.high - value]]
        ax.errorbar(
            load, value, errors, sides, fmt="o", color=SERIES[0], ms=5, elinewidth=1.1, capsize=2.5, label=label
        )
    elif np.isfinite(latency.sample_mean):
        ax.plot(load, 1e3 * latency.sample_mean, "o", mfc=PAPER, mec=SERIES[0], ms=5, label=label)


def _capacity_line(ax: Axes, capacity: Capacity) -> None:
    ax.axvspan(capacity.low / capacity.rate, capacity.high / capacity.rate, color=GRID, alpha=0.5, linewidth=0)
    ax.axvline(1.0, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)))
    ax.annotate(
        f"capacity {capacity.rate:.3g}/s",
        (1.0, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=MUTED,
    )


def _limit(ax: Axes, summaries: Sequence[RunSummary], metric: str) -> None:
    """The objective, where it lies within what is shown anyway."""
    limits = {summary.slo.limits[metric] for summary in summaries if summary.slo and metric in summary.slo.limits}
    top = ax.get_ylim()[1]
    for limit in limits:
        if limit <= top:
            ax.axhline(limit, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
            ax.annotate(
                "objective", (0.99, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5
            )


def _unstable(ax: Axes, summary: RunSummary, capacity: Capacity) -> None:
    load = summary.load.offered / capacity.rate
    top = ax.get_ylim()[1]
    ax.plot(load, top * 0.96, "X", color=INK, ms=7, clip_on=False)
    ax.annotate(
        "unstable,\nnot averaged",
        (load, top * 0.96),
        xytext=(0, -8),
        textcoords="offset points",
        ha="center" if load < 1.2 else "right",
        va="top",
        fontsize=8.5,
    )
