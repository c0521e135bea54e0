"""Objectives over a sweep of loads: attainment and goodput against load, and the largest load that meets them for sure.

``python -m analysis.slo RESULTS`` prints both for every experiment that states an objective.

Refused, failed and censored requests are misses, and requests that follow each other share a queue: an attainment is worth as
many independent requests as the correlation of hits and misses leaves.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from analysis.runs import Run
from analysis.study import StudyResults, open_study
from analysis.summary import RunSummary, summarize
from analysis.tables import aligned


@dataclass(frozen=True)
class LoadPoint:
    """Attainment at one load. ``worth``: independent requests that ``arrived`` are worth; ``goodput`` met per second."""

    load: float
    met: float
    arrived: int
    worth: float
    goodput: float

    @property
    def share(self) -> float:
        """Met over arrived."""
        return self.met / self.arrived

    def bound(self, confidence: float, upper: bool) -> float:
        """One-sided bound on the true share (Clopper & Pearson 1934, by the beta law, over ``worth`` requests)."""
        hits = self.share * self.worth
        if upper:
            return 1.0 if hits >= self.worth else float(stats.beta.ppf(confidence, hits + 1, self.worth - hits))
        return 0.0 if hits <= 0 else float(stats.beta.ppf(1 - confidence, hits, self.worth - hits + 1))


@dataclass(frozen=True)
class LargestLoad:
    """``met_up_to``: the objective is met there (and below) with the stated confidence; nan: at no measured load.

    ``missed_from``: it is missed there (and above) with that confidence; inf: at no measured load. ``estimate``: where the
    attainment crosses ``wanted``, straight between the points, made to fall; nan: not between measured loads.
    """

    wanted: float
    met_up_to: float
    missed_from: float
    estimate: float
    confidence: float

    def __str__(self) -> str:
        sure = (
            f"met up to load {self.met_up_to:.3g}" if math.isfinite(self.met_up_to) else "not shown to be met anywhere"
        )
        missed = (
            f"missed from {self.missed_from:.3g}" if math.isfinite(self.missed_from) else "nowhere shown to be missed"
        )
        about = f"crosses at about {self.estimate:.3g}" if math.isfinite(self.estimate) else "no crossing was measured"
        return f"{self.wanted:.0%} {sure}, {missed} (each with {self.confidence:.0%} confidence); {about}"


def largest_load(points: Sequence[LoadPoint], wanted: float, confidence: float = 0.95) -> LargestLoad:
    """The largest load that meets ``wanted``, for an attainment that falls with the load.

    Loads are tested in a fixed order, from the lowest upwards (met) and from the highest downwards (missed), each at the full
    confidence, until one can't be shown: all that was shown then holds together at that confidence (fixed-sequence
    procedure; Maurer, Hothorn & Lehmacher 1995), without a price for how many loads there are.

    Raises:
        ValueError: no points, or ``wanted`` or ``confidence`` outside (0, 1).

    >>> met = {0.3: 990, 0.6: 970, 0.9: 600}
    >>> sweep = [LoadPoint(load, n, 1000, 1000, n / 100) for load, n in met.items()]
    >>> found = largest_load(sweep, 0.95)
    >>> found.met_up_to, found.missed_from, round(found.estimate, 3)
    (0.6, 0.9, 0.616)
    """
    if not points:
        raise ValueError("no load was measured")
    if not (0 < wanted < 1 and 0 < confidence < 1):
        raise ValueError(f"wanted and confidence must lie in (0, 1), found {wanted} and {confidence}")
    rising = sorted(points, key=lambda point: point.load)
    met, missed = math.nan, math.inf
    for point in rising:
        if point.bound(confidence, upper=False) < wanted:
            break
        met = point.load
    for point in reversed(rising):
        if point.bound(confidence, upper=True) >= wanted:
            break
        missed = point.load
    return LargestLoad(wanted, met, missed, _crossing(rising, wanted), confidence)


def _crossing(points: Sequence[LoadPoint], wanted: float) -> float:
    shares: list[float] = []
    for point in points:  # an attainment that rises again is chance: it stays at the lowest so far
        shares.append(min(point.share, *shares) if shares else point.share)
    for i in range(1, len(points)):
        above, below = shares[i - 1], shares[i]
        if above >= wanted > below:
            part = (above - wanted) / (above - below)
            return points[i - 1].load + part * (points[i].load - points[i - 1].load)
    return math.nan


def attainment_by_load(summaries: Sequence[RunSummary], capacity: float | None = None) -> list[LoadPoint]:
    """The points of one sweep, replications of a load together.

    Args:
        capacity: completions a second that make a load of 1; None: loads are the planned (else offered) rates.
    """
    groups: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        if summary.slo is not None:
            groups.setdefault(summary.point, []).append(summary)
    found = []
    for runs in groups.values():
        judged = [(run, run.slo) for run in runs if run.slo is not None]
        rates = [run.load.offered if math.isnan(run.load.planned) else run.load.planned for run, _ in judged]
        seconds = sum(run.window[1] - run.window[0] for run, _ in judged)
        met, arrived = sum(slo.met for _, slo in judged), sum(slo.arrived for _, slo in judged)
        worth = sum(_worth(slo.share, slo.low, slo.high, slo.arrived) for _, slo in judged)
        load = sum(rates) / len(rates) / (capacity or 1.0)
        found.append(LoadPoint(load, met, arrived, worth, met / seconds))
    return sorted(found, key=lambda point: point.load)


def _worth(share: float, low: float, high: float, arrived: int) -> float:
    """Independent requests behind a Wilson interval of 95 %: its width solved for n, at most what arrived."""
    z2 = float(stats.norm.ppf(0.975)) ** 2
    width = (high - low) / 2
    # Wilson: width (1 + z2/n) = sqrt(z2 (p (1 - p) / n + z2 / (4 n^2))): a quadratic in n.
    a, b, c = width**2, 2 * width**2 * z2 - z2 * share * (1 - share), width**2 * z2**2 - z2**2 / 4
    root = (-b + math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a) if a > 0 else float(arrived)
    return max(1.0, min(root, float(arrived)))


def study_text(study: StudyResults, confidence: float = 0.95) -> str:
    """For each experiment with an objective: attainment and goodput at every load, and the largest load that meets it."""
    experiments: dict[str, list[Run]] = {}
    for run in study.runs:
        experiments.setdefault(str(run.meta.get("experiment", "")), []).append(run)
    blocks = []
    for name, runs in experiments.items():
        summaries = [summarize(run) for run in runs if len(run.measured)]
        wanted = next((s.slo.wanted for s in summaries if s.slo is not None), None)
        if wanted is None:
            continue
        calibration = study.calibration_of(runs[0])
        rate = getattr(calibration.capacity, "rate", None) if calibration is not None else None
        points = attainment_by_load(summaries, rate)
        rows = [
            [
                f"{point.load:.3g}",
                str(point.arrived),
                f"{point.share:.1%}",
                f"{point.bound(confidence, False):.1%}",
                f"{point.bound(confidence, True):.1%}",
                f"{point.goodput:.3g}",
            ]
            for point in points
        ]
        header = ["load" if rate else "requests/s", "arrived", "attained", "at least", "at most", "goodput/s"]
        verdict = str(largest_load(points, wanted, confidence)) if wanted < 1 else "all of the requests are wanted"
        blocks.append("\n".join([f"{name}:", *aligned(header, rows, left=()), f"  {verdict}"]))
    return "\n\n".join(blocks) if blocks else "no experiment states an objective (slo:)"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code (2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m analysis.slo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a results folder")
    parser.add_argument("--confidence", type=float, default=0.95, help="of each bound (default .95)")
    options = parser.parse_args(arguments)
    try:
        print(study_text(open_study(options.results), options.confidence))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
