"""Which figures a study gets, in reading order: what its sweeps did with their load, the latencies, where time goes, and
how far models hold."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.capacity import Capacity
from analysis.curve import Curve, simulated_curve
from analysis.figures.ccdf import ccdf
from analysis.figures.hockey_stick import hockey_stick
from analysis.figures.load import attainment, busy, throughput
from analysis.figures.models import against_models
from analysis.figures.number_in_system import number_in_system
from analysis.figures.one_seat import lindley_dots, one_seat_tail
from analysis.figures.percentiles import by_percentile
from analysis.figures.points import LoadAxis, Point, points_of
from analysis.figures.sharing import e2e_by_output
from analysis.figures.step_time import step_time
from analysis.figures.style import SCREEN, Drawn, Style
from analysis.figures.where_time_goes import where_time_goes
from analysis.fit.step_time import StepTimeModel
from analysis.predictions.checks import process_of
from analysis.runs import Run
from analysis.study import StudyResults, known_queue_of
from analysis.summary import RunSummary

METRICS = ("ttft", "e2e")


def study_figures(
    study: StudyResults,
    runs: Sequence[Run],
    summaries: Sequence[RunSummary],
    comparison: pd.DataFrame,
    style: Style = SCREEN,
) -> list[Drawn]:
    """All figures of the study's runs; ``comparison`` as from ``compare_study``."""
    points = points_of(list(zip(runs, summaries, strict=True)))
    sweeps = _sweeps(study, points)
    drawn: list[Drawn | None] = []
    for label, axis, group in sweeps:
        name, curve = slug(label), _curve(study, axis, group)
        drawn += [hockey_stick(name, group, axis, curve, metric, comparison, style) for metric in METRICS]
        drawn += [figure(name, group, axis, style) for figure in (throughput, busy, attainment)]
    # A known queue answers within milliseconds and would only squeeze the engine's lines.
    engines = [point for point in points if known_queue_of(point.pairs[0][0]) is None] or points
    drawn += [by_percentile(engines, metric, style) for metric in METRICS]
    drawn += [ccdf(engines, "e2e", style), where_time_goes(engines, style)]
    drawn += [number_in_system(slug(label), label, group, style) for label, group in _together(sweeps, points)]
    for label, group in _together(sweeps, points):
        drawn.append(e2e_by_output(slug(label), group, comparison, style))
    for point in points:
        run, summary = point.pairs[0]
        if summary.seats == 1 and run.recorded("steps") and run.recorded("batch"):
            name = slug(summary.experiment if _only(point, points) else point.name)
            if process_of(run) != "closed":  # M/G/1 is a model of open arrivals
                drawn.append(one_seat_tail(name, run, summary, comparison, style))
            drawn.append(lindley_dots(name, run, style))
    drawn += [step_time(slug(calibration.label), calibration, style) for calibration in study.calibrations]
    drawn.append(against_models(comparison, style))
    return [figure for figure in drawn if figure is not None]


def _sweeps(study: StudyResults, points: Sequence[Point]) -> list[tuple[str, LoadAxis, list[Point]]]:
    """Points that share an axis: those of one capacity; where none is known, those of one experiment at several rates.

    A closed loop has no point there: its rate is an outcome, not what was offered.
    """
    found: dict[str, tuple[LoadAxis, list[Point]]] = {}
    for point in points:
        if process_of(point.pairs[0][0]) == "closed":
            continue
        calibration = study.calibration_of(point.pairs[0][0])
        capacity = calibration.capacity if calibration is not None else None
        known = calibration is not None and isinstance(capacity, Capacity)
        label = calibration.label if calibration is not None and known else point.experiment
        axis = LoadAxis(capacity if isinstance(capacity, Capacity) else None)
        found.setdefault(label, (axis, []))[1].append(point)
    return [
        (label, axis, group)
        for label, (axis, group) in found.items()
        if len({round(point.offered, 9) for point in group}) > 1
    ]


def _together(
    sweeps: Sequence[tuple[str, LoadAxis, list[Point]]], points: Sequence[Point]
) -> list[tuple[str, list[Point]]]:
    """The sweeps, and each point that belongs to none by itself."""
    groups = [(label, group) for label, _, group in sweeps]
    swept = [point for _, group in groups for point in group]
    return groups + [(f"{point.experiment} {point.point}", [point]) for point in points if point not in swept]


def _curve(study: StudyResults, axis: LoadAxis, group: Sequence[Point]) -> Curve | None:
    """Through the stable points' first replications, where step times were fitted."""
    stable = [point.pairs[0][0] for point in group if point.stable]
    model: StepTimeModel | None = study.step_time_of(group[0].pairs[0][0])
    if not stable or model is None or axis.capacity is None:
        return None
    return simulated_curve(stable, model, axis.capacity.rate)


def _only(point: Point, points: Sequence[Point]) -> bool:
    return sum(other.experiment == point.experiment for other in points) == 1


def slug(name: str) -> str:
    """A name that can be an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").lower()
