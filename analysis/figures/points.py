"""What a figure is about: the points of a study, each with its replications, on an axis of load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.capacity import Capacity
from analysis.intervals import Estimate, TooShort, correlation_time, replications
from analysis.runs import Run
from analysis.summary import RunSummary, latencies
from analysis.tails import LEAST_BEYOND, QuantileInterval, quantile

Array = NDArray[np.float64]

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
LEAST = 4 * LEAST_BEYOND  # effective observations below which a distribution gets no line


@dataclass(frozen=True)
class Middle:
    """The middle of a latency at a point (s), with a 95 % interval (nan where there is none); ``kind`` says what it is."""

    value: float
    low: float
    high: float
    kind: str  # "median", "mean of the replications' (or repeats') medians", "mean"


@dataclass(frozen=True)
class Point:
    """The replications (and repeats) of one point of an experiment."""

    experiment: str
    point: str
    pairs: tuple[tuple[Run, RunSummary], ...]

    @property
    def summaries(self) -> list[RunSummary]:
        return [summary for _, summary in self.pairs]

    @property
    def name(self) -> str:
        """With a word where the backlog's growth was not decided: such a run may be averaged, and may be wrong."""
        return f"{self.experiment} {self.point}{' (undecided)' if self.undecided else ''}"

    @property
    def stable(self) -> bool:
        """Whether all of it may be averaged."""
        return all(summary.stable for summary in self.summaries)

    @property
    def unstable(self) -> bool:
        return any(summary.stability.verdict == "unstable" for summary in self.summaries)

    @property
    def undecided(self) -> bool:
        return any(summary.stability.verdict.startswith("undecided") for summary in self.summaries)

    @property
    def offered(self) -> float:
        """Mean arrivals a second."""
        return float(np.mean([summary.load.offered for summary in self.summaries]))

    @cached_property
    def _latencies(self) -> list[dict[str, Array]]:
        return [latencies(run) for run, _ in self.pairs]

    def values(self, metric: str) -> tuple[Array, float]:
        """The latencies of all its requests that have one (s), and how many independent ones they are worth."""
        each = [found[metric][~np.isnan(found[metric])] for found in self._latencies]
        worth = [float(np.mean([effective_n(each[i]) for i in runs])) for runs in self._replications]
        return np.concatenate(each), sum(worth)

    def count(self, metric: str) -> int:
        return sum(getattr(summary, metric).n for summary in self.summaries)

    @property
    def _replications(self) -> list[list[int]]:
        """Indices of the runs of each replication: its repeats, which have the same arrivals and lengths."""
        found: dict[str, list[int]] = {}
        for i, (run, _) in enumerate(self.pairs):
            found.setdefault(str(run.meta.get("replication")), []).append(i)
        return list(found.values())

    def middle(self, metric: str) -> Middle | None:
        """Over replications the mean of their medians; of one run its median, or the mean where there is no interval.

        The repeats of a replication are averaged first. Without another replication they keep a run's interval: that of the
        arrivals, which they have in common.
        """
        found = [getattr(summary, metric).quantiles.get(0.5) for summary in self.summaries]
        of_runs = [quantile(each[metric], 0.5, nan="drop") for each in self._latencies]
        medians = [float(np.mean([of_runs[i] for i in runs])) for runs in self._replications]
        if len(medians) > 1 and np.isfinite(medians).all():
            several = replications(medians)
            reach = several.half_width
            return Middle(several.mean, several.mean - reach, several.mean + reach, "mean of the replications' medians")
        known = [value for value in found if isinstance(value, QuantileInterval) and math.isfinite(value.high)]
        if len(medians) == 1 and len(known) == len(found):
            low, high = (float(np.mean([getattr(value, end) for value in known])) for end in ("low", "high"))
            return Middle(medians[0], low, high, "median" if len(known) == 1 else "mean of the repeats' medians")
        mean = float(np.mean([getattr(summary, metric).sample_mean for summary in self.summaries]))
        return Middle(mean, math.nan, math.nan, "mean") if math.isfinite(mean) else None


@dataclass(frozen=True)
class LoadAxis:
    """Realised load: arrivals a second over the capacity, or arrivals a second where no capacity is known."""

    capacity: Capacity | None

    @property
    def label(self) -> str:
        return "arrivals per second" if self.capacity is None else "realised load: arrivals per second / capacity"

    def at(self, rate: float) -> float:
        """Where a rate (requests/s) lies on the axis."""
        return rate if self.capacity is None else rate / self.capacity.rate

    def sides(self, rate: float) -> tuple[float, float]:
        """How far the capacity's 95 % interval reaches to the left and to the right of a rate's load."""
        if self.capacity is None:
            return 0.0, 0.0
        here = self.at(rate)
        right = rate / self.capacity.low if self.capacity.low > 0 else here
        return here - rate / self.capacity.high, right - here

    def right(self, points: Sequence[Point]) -> float:
        """Where the axis ends: all points inside, and the capacity."""
        last = max(self.at(point.offered) + self.sides(point.offered)[1] for point in points)
        return 1.06 * (last if self.capacity is None else max(1.1, last))


def points_of(pairs: Sequence[tuple[Run, RunSummary]]) -> list[Point]:
    """The points in the order of their first run."""
    found: dict[tuple[str, str], list[tuple[Run, RunSummary]]] = {}
    for run, summary in pairs:
        found.setdefault((summary.experiment, summary.point), []).append((run, summary))
    return [Point(experiment, point, tuple(group)) for (experiment, point), group in found.items()]


def effective_n(values: Array) -> float:
    """How many independent observations the values are worth around their median."""
    if values.size < 4:
        return float(values.size)
    return values.size / correlation_time((values > np.median(values)).astype(float))


def left_out(points: Sequence[Point], metric: str | None = None, shown: Sequence[Point] = ()) -> str:
    """A sentence that names the points a figure does not show, and why; empty where it shows all."""
    reasons = []
    for point in points:
        if point in shown:
            continue
        if point.unstable:
            reasons.append(f"{point.name}: unstable")
        elif not point.stable:
            reasons.append(f"{point.name}: cut short")
        elif metric is not None:
            values, worth = point.values(metric)
            few = f"{values.size} requests are worth {worth:.0f} independent ones, {LEAST} are needed"
            reasons.append(f"{point.name}: {few if worth < LEAST else 'no colour left'}")
        else:
            reasons.append(f"{point.name}: not recorded")
    return f" Not shown: {'; '.join(reasons)}." if reasons else ""


def known_to(points: Sequence[Point], metric: str) -> str:
    """How precisely the medians are known: what a difference has to exceed before these runs show it."""
    reach = []
    for point in points:
        middle = point.middle(metric)
        if middle is not None and math.isfinite(middle.high) and middle.value > 0:
            reach.append((middle.high - middle.low) / 2 / middle.value)
    if not reach:
        return " No median here has an interval: differences between the runs may be chance."
    low, high = 100 * min(reach), 100 * max(reach)
    width = f"{high:.0f} %" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} %"
    return f" Medians are known to ± {width} (95 %); smaller differences may be chance."


def would_notice(comparison: pd.DataFrame, model: str, runs: Sequence[str], quantity: str = "") -> str:
    """The smallest deviation from a model that these runs would show with probability .9, as a sentence; or nothing."""
    rows = comparison[(comparison["model"] == model) & comparison["run"].isin(runs)]
    if quantity:
        rows = rows[rows["quantity"] == quantity]
    shares = rows["detectable"].dropna().to_numpy(dtype=float)
    if not shares.size:
        return ""
    low, high = 100 * shares.min(), 100 * shares.max()
    width = f"{high:.0f} %" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} %"
    return f" Runs of this length would notice a deviation of {width} from the model."


def interval_of(estimate: Estimate | TooShort | None) -> tuple[float, float]:
    """Mean and half-width; nan where there is none."""
    return (estimate.mean, estimate.half_width) if isinstance(estimate, Estimate) else (math.nan, math.nan)
