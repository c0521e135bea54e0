"""Latency by percentile on HdrHistogram's axis, 1 / (1 - q), each line cut where the count ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figures.style import DASHES, SERIES, Drawn, axes, finish
from analysis.intervals import correlation_time
from analysis.runs import Run
from analysis.summary import RunSummary, latencies
from analysis.tails import LEAST_BEYOND

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
TICKS = (0.0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)
LEAST = 4 * LEAST_BEYOND  # effective observations below which there is no line


def by_percentile(runs: Sequence[tuple[Run, RunSummary]], metric: str) -> Drawn | None:
    """One line a stable run; None where no run has enough observations."""
    shown = 0
    counts = []
    data = []
    with axes() as (figure, ax):
        last = 0.5
        for run, summary in runs:
            values = latencies(run)[metric]
            values = values[~np.isnan(values)]
            worth = effective_n(values)
            if not summary.stable or worth < LEAST or shown == len(SERIES):
                continue
            q, height = percentile_line(values, worth)
            name = f"{summary.experiment} {summary.point}"
            ax.step(1 / (1 - q), 1e3 * height, where="pre", color=SERIES[shown], linestyle=DASHES[shown], label=name)
            data.append(pd.DataFrame({"run": name, "q": q, f"{metric}_ms": 1e3 * height}))
            counts.append(f"{name}: {values.size} requests worth {worth:.0f}")
            last = max(last, float(q[-1]))
            shown += 1
        if not shown:
            return None
        ax.set_xscale("log")
        ax.set_xlim(1, 1.15 / (1 - last))
        ax.set_ylim(bottom=0)
        ticks = [q for q in TICKS if q <= last] if last >= 0.5 else [0.0]
        ax.xaxis.set_major_locator(FixedLocator([1 / (1 - q) for q in ticks]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * (1 - 1 / x):g} %"))
        ax.set_xlabel("percentile, on the scale of 1 / (1 − q)")
        ax.set_ylabel(f"{NAMES[metric]} (ms)")
        ax.legend(loc="upper left")
    return finish(
        figure,
        f"percentiles-{metric}",
        f"{NAMES[metric]} by percentile",
        label=f"{NAMES[metric]} by percentile",
        look="A straight line is an exponential tail; a line that bends up is heavier, and averages say little about it.",
        caption=f"Client's stamps. Each line ends where fewer than {LEAST_BEYOND} effective observations lie beyond ("
        + "; ".join(counts)
        + "). Full histograms: hdr/.",
        data=data,
    )


def percentile_line(values: np.ndarray, worth: float) -> tuple[np.ndarray, np.ndarray]:
    """q and the value there, up to the last q with ``LEAST_BEYOND`` effective observations beyond it."""
    ordered = np.sort(values)
    q = np.arange(1, ordered.size + 1) / ordered.size
    kept = worth * (1 - q) >= LEAST_BEYOND - 1e-9
    kept &= np.isfinite(ordered)
    return np.concatenate([[0.0], q[kept]]), np.concatenate([[ordered[0]], ordered[kept]])


def effective_n(values: np.ndarray) -> float:
    """How many independent observations the values are worth around their median."""
    if values.size < 4:
        return float(values.size)
    return values.size / correlation_time((values > np.median(values)).astype(float))
