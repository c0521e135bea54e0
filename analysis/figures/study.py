"""Which figures a study gets: a hockey stick for each mix, one seat against theory, percentiles and tails, parts of
the latency, number in system."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.capacity import Capacity
from analysis.curve import simulated_curve
from analysis.figures.ccdf import ccdf
from analysis.figures.hockey_stick import hockey_stick
from analysis.figures.number_in_system import number_in_system
from analysis.figures.one_seat import lindley_dots, one_seat_tail
from analysis.figures.percentiles import by_percentile
from analysis.figures.style import Drawn
from analysis.figures.where_time_goes import where_time_goes
from analysis.runs import Run
from analysis.study import Calibration, StudyResults
from analysis.summary import RunSummary

Pairs = list[tuple[Run, RunSummary]]


def study_figures(study: StudyResults, runs: Sequence[Run], summaries: Sequence[RunSummary]) -> list[Drawn]:
    """All figures in reading order."""
    pairs = list(zip(runs, summaries, strict=True))
    drawn: list[Drawn | None] = []
    for calibration in study.calibrations:
        group = [pair for pair in pairs if study.calibration_of(pair[0]) is calibration]
        if len(group) > 1:
            drawn += _sweep(study, calibration, group)
    for run, summary in pairs:
        if summary.seats == 1 and run.recorded("steps") and run.recorded("batch"):
            name = slug(summary.experiment)
            drawn += [one_seat_tail(name, run, summary), lindley_dots(name, run)]
    drawn += [by_percentile(pairs, metric) for metric in ("ttft", "e2e")]
    drawn += [ccdf(pairs, "e2e"), where_time_goes(pairs)]
    singles = [pair for pair in pairs if not any(pair in group for group in _sweeps(study, pairs))]
    groups = [(group[0][1].experiment, group) for group in _sweeps(study, pairs)]
    groups += [(f"{summary.experiment} {summary.point}", [(run, summary)]) for run, summary in singles]
    drawn += [number_in_system(slug(title), title, group) for title, group in groups]
    return [figure for figure in drawn if figure is not None]


def _sweeps(study: StudyResults, pairs: Pairs) -> list[Pairs]:
    groups = [
        [pair for pair in pairs if study.calibration_of(pair[0]) is calibration] for calibration in study.calibrations
    ]
    return [group for group in groups if len(group) > 1]


def _sweep(study: StudyResults, calibration: Calibration, group: Pairs) -> list[Drawn | None]:
    capacity = calibration.capacity
    if not isinstance(capacity, Capacity):
        return []
    stable = [run for run, summary in group if summary.stable]
    model = study.step_time_of(group[0][0])
    curve = simulated_curve(stable, model, capacity.rate) if stable and model is not None else None
    name = slug(calibration.label)
    summaries = [summary for _, summary in group]
    return [hockey_stick(name, summaries, capacity, curve, metric) for metric in ("ttft", "e2e")]


def slug(name: str) -> str:
    """A name that can be an id."""
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").lower()
