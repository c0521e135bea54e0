"""What every part of the fidelity report works on: a study's points with their repeats, the step-time model fitted to one of
them, and an outcome for each error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.fit.step_time import StepTimeModel, fit_step_time
from analysis.runs import Run
from analysis.study import StudyResults, execution_digest, open_study

Floats = NDArray[np.float64]

FIT_EXPERIMENT = "fit"
LEAST_REFERENCE_STEPS = 20
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Cell:
    """One point of a study: runs that differ by repeat (same seeds) or replication (new seeds) alone."""

    experiment: str
    point: str
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.point}"

    @property
    def replications(self) -> int:
        """Number of different seeds."""
        return len({run.meta.get("replication", 0) for run in self.runs})


@dataclass(frozen=True)
class Fitted:
    """The step-time model that all parts share: of the calibration grid and the runs of one experiment."""

    model: StepTimeModel
    source: str
    runs: tuple[Run, ...]
    held_out: tuple[Cell, ...]  # the points that the fit has not seen
    steps: tuple[pd.DataFrame, ...]  # the tables that it was fitted to


@dataclass(frozen=True)
class ErrorInterval:
    """Mean relative error over repeats with its confidence interval (nan where there is one repeat only)."""

    mean: float
    low: float
    high: float
    n: int

    def outcome(self, bar: float | None) -> str:
        """``meets`` where the whole interval is inside the bar, ``misses`` where all of it is outside, else ``cannot tell``;
        ``reported`` without a bar."""
        if bar is None:
            return "reported"
        if math.isnan(self.low) or math.isnan(self.high):
            return "cannot tell"
        if -bar <= self.low and self.high <= bar:
            return "meets"
        return "misses" if self.low > bar or self.high < -bar else "cannot tell"


def error_interval(errors: ArrayLike, confidence: float = CONFIDENCE) -> ErrorInterval:
    """Student's interval of the mean of independent errors."""
    values = np.asarray(errors, dtype=float)
    mean = float(values.mean()) if values.size else math.nan
    if values.size < 2 or not np.isfinite(values).all():
        return ErrorInterval(mean, math.nan, math.nan, values.size)
    half = float(stats.t.ppf((1 + confidence) / 2, values.size - 1) * values.std(ddof=1) / math.sqrt(values.size))
    return ErrorInterval(mean, mean - half, mean + half, values.size)


def cells_of(study: StudyResults) -> tuple[Cell, ...]:
    """The measured points of a study, in the order in which they were measured."""
    points: dict[tuple[str, str], list[Run]] = {}
    for run in study.runs:
        key = (str(run.meta.get("experiment", "")), str(run.meta.get("point", "")))
        points.setdefault(key, []).append(run)
    return tuple(Cell(experiment, point, tuple(runs)) for (experiment, point), runs in points.items())


def fit_study(results: str | Path | StudyResults, experiment: str = FIT_EXPERIMENT) -> Fitted:
    """Fit the step times to the grid and to the runs of ``experiment``.

    Raises:
        ValueError: the study has no such experiment, or its runs hold too few steps.
    """
    study = results if isinstance(results, StudyResults) else open_study(results)
    cells = cells_of(study)
    runs = tuple(run for cell in cells if cell.experiment == experiment for run in cell.runs)
    if not runs:
        known = ", ".join(dict.fromkeys(cell.experiment for cell in cells))
        raise ValueError(f"{study.path} has no experiment {experiment!r} to fit to; it has {known}: give --fit NAME")
    digest = execution_digest(runs[0])
    grids = [c.grid for c in study.calibrations if c.grid is not None and execution_digest(c.grid) == digest]
    model = fit_step_time([*grids, *runs])
    source = f"{len(grids)} grids and {len(runs)} runs of {experiment}, {len(model.noise)} steps"
    held_out = tuple(cell for cell in cells if cell.experiment != experiment)
    return Fitted(model, source, runs, held_out, tuple(run.steps for run in (*grids, *runs)))


def machine_factor(run: Run, model: StepTimeModel) -> float:
    """How slow the machine was in ``run``, as a multiple of the fitted speed, from its reference steps.

    Those are the steps that decode only, after no pause, with the gap behind them: neither arrivals nor queueing change what
    they cost. Where there are fewer than 20 of them, all steps after no pause.
    """
    steps = run.steps
    next_start_s = steps["start_s"].shift(-1).where(steps["idle_s"].shift(-1) == 0)
    warm = steps["idle_s"].eq(0) & next_start_s.notna()
    reference = warm & steps["prefill_seqs"].eq(0)
    chosen = reference if int(reference.sum()) >= LEAST_REFERENCE_STEPS else warm
    if not chosen.any():
        return 1.0
    measured = float((next_start_s - steps["start_s"])[chosen].sum())
    predicted = np.asarray(model.predict(steps[chosen])) * model.time_factor + gaps_of(steps[chosen], model)
    return measured / float(predicted.sum())


def gaps_of(steps: pd.DataFrame, model: StepTimeModel) -> Floats:
    """The gap (s) that the model says lies behind each step."""
    base, row, logit_row = model.gap_prices
    rows = (steps["decode_seqs"] + steps["prefill_tokens"]).to_numpy(dtype=float)
    return np.asarray(base + row * rows + logit_row * steps["logit_rows"].to_numpy(dtype=float))
