"""P(latency > t) on a logarithmic axis, each line cut where the count ends: the shape of the tail."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures.percentiles import LEAST, NAMES, effective_n, percentile_line
from analysis.figures.style import DASHES, SERIES, Drawn, axes, finish
from analysis.runs import Run
from analysis.summary import RunSummary, latencies
from analysis.tails import LEAST_BEYOND


def ccdf(runs: Sequence[tuple[Run, RunSummary]], metric: str) -> Drawn | None:
    """One line a stable run (``metric``: ttft, tpot or e2e); None where no run has enough observations."""
    data: list[pd.DataFrame] = []
    counts = []
    with axes() as (figure, ax):
        for run, summary in runs:
            values = latencies(run)[metric]
            values = values[~np.isnan(values)]
            worth = effective_n(values)
            shown = len(data)
            if not summary.stable or worth < LEAST or shown == len(SERIES):
                continue
            q, height = percentile_line(values, worth)
            name = f"{summary.experiment} {summary.point}"
            ax.step(1e3 * height, 1 - q, where="post", color=SERIES[shown], linestyle=DASHES[shown], label=name)
            data.append(pd.DataFrame({"run": name, f"{metric}_ms": 1e3 * height, "p_above": 1 - q}))
            counts.append(f"{name}: n = {values.size}")
        if not data:
            return None
        ax.set_yscale("log")
        ax.set_xlim(left=0)
        ax.set_ylim(top=1.2)
        ax.set_xlabel(f"{NAMES[metric]} t (ms)")
        ax.set_ylabel(f"P({NAMES[metric]} > t)")
        ax.legend(loc="upper right")
    return finish(
        figure,
        f"ccdf-{metric}",
        f"Tail of {NAMES[metric]}",
        label=f"share of requests whose {NAMES[metric]} is above t",
        look="A straight line falls by the same factor for each further millisecond; one that flattens has no typical worst "
        "case.",
        caption=f"Client's stamps, measured requests of stable runs ({'; '.join(counts)}). Each line ends where fewer than "
        f"{LEAST_BEYOND} effective observations lie above.",
        data=data,
    )
