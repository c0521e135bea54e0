"""Whether a run had a steady state to measure: its backlog did not grow, and nothing in it had a trend.

A growing backlog is judged against what chance alone makes of it: over n arrivals the difference between what came and
what a busy server completes has variance n (ca^2 + cs^2). A slope test that takes the backlog's points as independent
cries "unstable" in a fifth to two fifths of stable runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.intervals import Estimate
from analysis.littles_law import Spans
from analysis.runs import Run

Array = NDArray[np.float64]

UNSTABLE_Z, STABLE_Z = 2.0, 1.0
LEAST_ARRIVALS = 30


@dataclass(frozen=True)
class Stability:
    """``z`` = growth / sqrt(n (ca2 + cs2)). ``detectable_load`` is the load from which growth would reach z = 2 on
    average in a run of this length: a "stable" verdict says nothing about overloads below it (inf: about any)."""

    verdict: str  # "stable", "unstable", "undecided", or "undecided: ..." with the reason
    z: float
    growth: float  # requests
    n: int  # arrivals in the window
    ca2: float  # squared coefficient of variation of the gaps
    cs2: float  # and of the service demands
    detectable_load: float


def backlog_test(growth: float, n: int, ca2: float, cs2: float) -> Stability:
    """Judge a backlog that grew by ``growth`` requests while ``n`` arrived.

    Under a load of exactly 1 a queue's growth is about normal with variance n (ca2 + cs2) (functional central limit theorem;
    Whitt, Stochastic-Process Limits, 9.3); below it, it is smaller, so z > 2 is rarer than 5 %; above it by a factor r it
    is n (1 - 1/r) more.
    """
    if n < 0 or ca2 < 0 or cs2 < 0:
        raise ValueError(f"n, ca2 and cs2 must not be negative, found {n}, {ca2}, {cs2}")
    spread = math.sqrt(n * (ca2 + cs2))
    # One request more or less is no growth: with constant gaps and sizes the spread is 0.
    z = growth / max(spread, 1.0)
    share = UNSTABLE_Z * max(spread, 1.0) / n if n else math.inf
    detectable = 1 / (1 - share) if share < 1 else math.inf
    if n < LEAST_ARRIVALS:
        verdict = f"undecided: {n} arrivals, at least {LEAST_ARRIVALS} are wanted"
    elif z > UNSTABLE_Z:
        verdict = "unstable"
    elif z < STABLE_Z:
        verdict = "stable"
    else:
        verdict = "undecided"
    return Stability(verdict, z, growth, n, ca2, cs2, detectable)


def backlog_stability(
    arrivals: ArrayLike, departures: ArrayLike, start: float, end: float, service: ArrayLike | None = None
) -> Stability:
    """From stamps (nan departures: still inside). ``service`` are the requests' demands in any unit (seconds, tokens).

    Without them cs2 is taken from the gaps between departures, which are the services of a queue with one seat that is
    never empty, and more variable than those otherwise: the test then errs towards "stable".
    """
    a = np.sort(np.asarray(arrivals, dtype=float))
    d = np.asarray(departures, dtype=float)
    d = np.sort(d[np.isfinite(d)])
    if not end > start:
        raise ValueError(f"the window must end after it starts, found [{start}, {end}]")
    came = a[(a >= start) & (a < end)]
    left = d[(d >= start) & (d < end)]
    demand = np.diff(left) if service is None else np.asarray(service, dtype=float)
    return backlog_test(float(came.size - left.size), came.size, squared_cv(np.diff(came)), squared_cv(demand))


def stability(run: Run, start: float | None = None, end: float | None = None) -> Stability:
    """The backlog test on a run's measure window (or [start, end]).

    Growth is the gauge's where there is one (the engine's own count), the client's stamps' otherwise; the demands are the
    running times of the requests that ended normally.
    """
    first, last = run.window if start is None or end is None else (start, end)
    start, end = (first if start is None else start), (last if end is None else end)
    spans = Spans.of(run.requests)
    running = spans.done - run.requests["scheduled_s"].to_numpy(dtype=float)
    again = run.requests["wait_total"].to_numpy(dtype=float) - run.requests["wait_first"].to_numpy(dtype=float)
    demand = (running - np.nan_to_num(again))[spans.normal]
    demand = demand[np.isfinite(demand)]
    stamped = backlog_stability(spans.intended, spans.finished, start, end, demand if demand.size > 1 else None)
    if not run.recorded("gauge"):
        return stamped
    t = run.gauge["t_s"].to_numpy(dtype=float)
    number = run.gauge[["inbox", "waiting", "running"]].to_numpy(dtype=float).sum(axis=1)
    at = np.searchsorted(t, [start, end], side="right") - 1
    level = np.where(at >= 0, number[np.maximum(at, 0)], 0.0) if t.size else np.zeros(2)
    return backlog_test(float(level[1] - level[0]), stamped.n, stamped.ca2, stamped.cs2)


def squared_cv(x: ArrayLike) -> float:
    """Squared coefficient of variation, 0 for fewer than two values or a mean of 0."""
    values = np.asarray(x, dtype=float)
    if values.size < 2 or values.mean() == 0:
        return 0.0
    return float(values.var(ddof=1) / values.mean() ** 2)


def residual_trend(t: ArrayLike, residual: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The change of a residual (step time minus its model, say) from the run's start to its end, in its own unit.

    Least squares through the means of 20 equal stretches of the series, so that correlation within a stretch does not
    narrow the interval. An interval that leaves out 0 is a trend. Raises ValueError below 60 observations.
    """
    x, y = np.asarray(t, dtype=float), np.asarray(residual, dtype=float)
    if x.shape != y.shape or x.ndim != 1 or x.size < 60:
        raise ValueError(f"expected two equal series of at least 60 observations, found {x.shape} and {y.shape}")
    size = x.size // 20
    centre = x[: 20 * size].reshape(20, size).mean(axis=1)
    level = y[: 20 * size].reshape(20, size).mean(axis=1)
    fit = stats.linregress(centre, level)
    span = float(x[-1] - x[0])
    half = float(stats.t.ppf((1 + confidence) / 2, 18) * fit.stderr) * span
    return Estimate(float(fit.slope) * span, half, x.size, 20.0, confidence, "trend of 20 stretches")
