"""One seat against theory: the tail of the wait beside M/G/1's, and each sojourn beside Lindley's."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.figures.points import would_notice
from analysis.figures.style import MUTED, SERIES, Drawn, Style, axes, finish
from analysis.predictions.one_seat import Served, lindley_path, served
from analysis.queues import MG1, UnstableQueueError
from analysis.runs import Run
from analysis.summary import RunSummary

Array = NDArray[np.float64]

DRAWS = 400
POINTS = 60
BAND = 0.99


def one_seat_tail(name: str, run: Run, summary: RunSummary, comparison: pd.DataFrame, style: Style) -> Drawn | None:
    """P(wait > t), measured and by M/G/1 with the measured service times; None where there is no steady state."""
    seen = served(run)
    lam = summary.load.planned if np.isfinite(summary.load.planned) else summary.load.offered
    waits = seen.wait[seen.measured]
    if waits.size < 10 or not summary.stable:
        return None
    try:
        queue = MG1(lam, seen.service)
    except UnstableQueueError:
        return None
    skip = int(np.count_nonzero(run.requests["phase"] == "warmup"))
    t = np.linspace(0.0, 1.15 * float(waits.max()), POINTS)
    low, high = tail_band(seen, lam, skip, waits.size, t)
    floor = 1 / waits.size
    with axes(style) as (figure, (ax,)):
        band = np.maximum(low, floor / 3), high
        ax.fill_between(1e3 * t, *band, color=SERIES[1], alpha=0.16, lw=0, label="99 % of M/G/1 runs")
        ax.plot(1e3 * t, queue.wait_tail(t), color=SERIES[1], label="M/G/1, steady state")
        x, above = np.append(0.0, np.sort(waits)), 1 - np.arange(waits.size + 1) / waits.size
        ax.step(1e3 * x, above, where="post", color=SERIES[0], label="measured")
        ax.set_yscale("log")
        ax.set_ylim(floor / 1.5, 1.3)
        ax.set_xlim(0, 1e3 * float(t[-1]))
        ax.set_xlabel("wait t in the engine (ms)")
        ax.set_ylabel("P(wait > t)")
        ax.legend(loc="lower left")
    theory = {"t_ms": 1e3 * t, "p_above": queue.wait_tail(t), "low": low, "high": high}
    return finish(
        figure,
        f"tail-{name}",
        f"One seat against M/G/1 ({name})",
        label="tail of the wait, measured and M/G/1",
        look="Where M/G/1 holds, the measured steps stay inside the band; its width shows how little one run of this length "
        "can say.",
        caption=f"Engine's stamps, received to first scheduled; n = {waits.size} after {skip} of warm-up. Service times "
        f"measured from the steps, ρ = {queue.rho:.2f}. Band: {BAND:.0%} of {DRAWS} simulated runs of this length, each t."
        + would_notice(comparison, "mg1", [summary.name], "mean wait"),
        data=[
            pd.DataFrame({"series": "measured", "t_ms": 1e3 * x, "p_above": above}),
            pd.DataFrame({"series": "M/G/1", **theory}),
        ],
    )


def tail_band(seen: Served, lam: float, skip: int, n: int, t: Array, seed: int = 0) -> tuple[Array, Array]:
    """Where P(wait > t) of an M/G/1 run of ``n`` customers after ``skip`` lies, at each t: two arrays like ``t``."""
    rng = np.random.default_rng(seed)
    wait = np.zeros(DRAWS)
    above = np.zeros((t.size, DRAWS))
    for customer in range(skip + n):
        if customer >= skip:
            above += wait[None, :] > t[:, None]
        wait = np.maximum(0.0, wait + rng.choice(seen.service, DRAWS) - rng.exponential(1 / lam, DRAWS))
    low, high = np.quantile(above / n, [(1 - BAND) / 2, (1 + BAND) / 2], axis=1)
    return low, high


def lindley_dots(name: str, run: Run, style: Style) -> Drawn | None:
    """Each request's sojourn against Lindley's recursion."""
    seen = served(run)
    if not seen.measured.any():
        return None
    path = lindley_path(seen.received, seen.service, seen.gap)[seen.measured]
    true = seen.sojourn[seen.measured]
    error = float(np.median(np.abs(path - true) / true))
    with axes(style) as (figure, (ax,)):
        top = 1e3 * max(float(path.max()), float(true.max())) * 1.05
        ax.plot([0, top], [0, top], color=MUTED, linewidth=1.0, label="equal")
        ax.plot(1e3 * path, 1e3 * true, "o", ms=3, color=SERIES[0], alpha=0.7, ls="none", label="one request")
        ax.set_xlim(0, top)
        ax.set_ylim(0, top)
        ax.set_xlabel("predicted sojourn (ms)")
        ax.set_ylabel("measured sojourn (ms)")
        ax.legend(loc="upper left")
    return finish(
        figure,
        f"lindley-{name}",
        f"One seat, request by request ({name})",
        label="each sojourn, measured against Lindley's recursion",
        look="No chance is left here: given who came when and how long each took to serve, every dot belongs on the line.",
        caption=f"Engine's stamps, received to done, n = {true.size}; median error {error:.2%}. Service times are the steps "
        "a request ran in and the mean gap after each. No chance is left, so that any error above that is noticed.",
        data=pd.DataFrame({"predicted_ms": 1e3 * path, "measured_ms": 1e3 * true}),
    )
