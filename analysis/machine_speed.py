"""How fast the machine was from run to run, as multiples of the speed it was calibrated at, and how much that wobbles.

A machine that is shared, or changes its clock, is a few percent faster in one run than in the next. Two calibrations differ
by as much without any drift. The runs between them show how large that is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.fit.step_time import StepTimeModel
from analysis.runs import Run


@dataclass(frozen=True)
class Wobble:
    """``spread``: standard deviation of the logarithm of a run's speed, trends left out; from ``differences`` of successive
    runs."""

    spread: float
    differences: int

    def half_width(self, confidence: float) -> float:
        """Half-width of the interval of the log ratio of two runs that differ by nothing else.

        Successive differences of independent normal values are correlated by 1/2: they are worth two thirds as many
        degrees of freedom (von Neumann, Annals of Mathematical Statistics 12, 1941, in large samples).
        """
        quantile = float(stats.t.ppf((1 + confidence) / 2, self.differences * 2 / 3))
        return quantile * math.sqrt(2) * self.spread


def step_time_level(run: Run, model: StepTimeModel) -> float:
    """Time that the steps of the run's measure window took over what ``model`` says they take.

    Raises:
        ValueError: the run has no steps there.
    """
    start, end = run.window
    steps = run.steps if run.recorded("steps") else None
    if steps is not None:
        steps = steps[(steps["start_s"] >= start) & (steps["end_s"] <= end)]
    if steps is None or len(steps) == 0:
        raise ValueError("no steps were recorded in the measured phase: its speed is not known")
    return float((steps["end_s"] - steps["start_s"]).sum() / np.sum(model.predict(steps)))


def wobble(series: Sequence[Sequence[float]]) -> Wobble | None:
    """From the levels of successive runs, one sequence a calibration; None where there are fewer than two differences.

    Half the mean squared successive difference is the variance where a level is constant, and hardly more where it
    drifts slowly (von Neumann 1941).
    """
    differences = np.concatenate([np.diff(np.log(levels)) for levels in series if len(levels) > 2] or [np.empty(0)])
    if differences.size < 2:
        return None
    return Wobble(math.sqrt(float(np.mean(differences**2)) / 2), int(differences.size))
