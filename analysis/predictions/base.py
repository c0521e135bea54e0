"""What a model says about one run, and how that is judged: a band, an error, the smallest deviation that would show.

A run is one draw. Its mean is therefore held against the *prediction band* of the model, where the means of runs of the same
length and warm-up would lie, and never against the model's steady-state mean alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]

FAMILYWISE = 0.01  # chance that any verdict of one report is "differs" or "assumption violated" by chance alone
BAND = 0.99
POWER = 0.9
TOO_COARSE = 1.0  # a run that would not notice twice the predicted value is too short to agree with anything
_RANKED = 10  # draws further out from which a rank gives the probability; below, a normal tail does


@dataclass(frozen=True)
class Check:
    """One assumption held against the run: by a test (``p_value``), or by a rule (``holds``)."""

    assumption: str
    finding: str
    p_value: float | None = None
    holds: bool = True


@dataclass(frozen=True)
class Band:
    """Where a run of this length would lie if the model were true: ``BAND`` of the draws, and what would be noticed."""

    low: float
    high: float
    p_value: float  # two-sided, of the measured value
    detectable: float  # true deviation upwards, in the unit of the value, that is noticed with probability ``POWER``
    draws: int


@dataclass(frozen=True)
class Prediction:
    """One row of the comparison. Values in ``unit``; ``verdict`` is filled in by ``judge``.

    A statement about every request (a path) has a ``tolerance`` on ``scatter``, the median relative error, in place of a
    band. ``refused`` says why there is no prediction at all.
    """

    model: str
    quantity: str
    unit: str
    checks: tuple[Check, ...] = ()
    predicted: float = math.nan
    measured: float = math.nan
    n: int = 0
    band: Band | None = None
    tolerance: float | None = None
    scatter: float | None = None
    refused: str | None = None
    note: str = ""
    verdict: str = ""

    @property
    def error(self) -> float:
        """Prediction minus measurement, as a share of the measurement."""
        return (self.predicted - self.measured) / self.measured if self.measured else math.nan

    @property
    def detectable(self) -> float:
        """Smallest deviation from the prediction, as a share of it, that this run would notice (nan: not by a band)."""
        return self.band.detectable / abs(self.predicted) if self.band is not None and self.predicted else math.nan


def band_of(draws: ArrayLike, measured: float, predicted: float) -> Band:
    """The band from simulated runs.

    The two-sided probability is by rank where at least ten draws lie further out, otherwise from a normal tail (Student's,
    for a further draw, with few of them).

    Raises:
        ValueError: fewer than ten draws, or one that is not finite.
    """
    values = np.sort(np.asarray(draws, dtype=float))
    if values.size < 10 or not np.isfinite(values).all():
        raise ValueError(f"a band wants at least ten finite draws, found {np.count_nonzero(np.isfinite(values))}")
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    widened = spread * math.sqrt(1 + 1 / values.size)
    law = stats.t(values.size - 1)
    further = min(int(np.count_nonzero(values >= measured)), int(np.count_nonzero(values <= measured)))
    if further >= _RANKED:
        p = 2 * further / values.size
    else:
        p = 2 * float(law.sf(abs(measured - mean) / widened)) if widened > 0 else float(measured == mean)
    tail = (1 - BAND) / 2
    if values.size * tail >= _RANKED:
        low, high = (float(value) for value in np.quantile(values, [tail, 1 - tail]))
    else:
        reach = float(law.ppf(1 - tail)) * widened
        low, high = mean - reach, mean + reach
    detectable = max(high - predicted, 0.0) + float(stats.norm.ppf(POWER)) * spread
    return Band(low, high, min(1.0, p), detectable, values.size)


def judge(predictions: Sequence[Prediction], familywise: float = FAMILYWISE) -> list[Prediction]:
    """Give each its verdict; everything tested here shares ``familywise`` by Holm's procedure.

    Verdicts: "agrees", "differs", "too short", "assumption violated: ...", and whatever ``refused`` says. The checks of one
    model on one run are the same tests in each of its rows and count once.
    """
    tested: dict[tuple[str, str, float], float] = {}
    for row in predictions:
        for check in row.checks:
            if check.p_value is not None:
                tested[(row.model, check.assumption, check.p_value)] = check.p_value
    keys = list(tested)
    banded = [i for i, row in enumerate(predictions) if row.band is not None]
    bands = [row.band.p_value for row in predictions if row.band is not None]
    rejected = holm([tested[key] for key in keys] + bands, familywise)
    broken = {key for key, no in zip(keys, rejected, strict=False) if no}
    outside = {i for i, no in zip(banded, rejected[len(keys) :], strict=True) if no}
    return [
        replace(row, verdict=_verdict(row, {k[1] for k in broken if k[0] == row.model}, i in outside))
        for i, row in enumerate(predictions)
    ]


def _verdict(row: Prediction, broken: set[str], outside: bool) -> str:
    if row.refused is not None:
        return row.refused
    failed = [check for check in row.checks if not check.holds]
    failed += [check for check in row.checks if check.p_value is not None and check.assumption in broken]
    if failed:
        return "assumption violated: " + "; ".join(f"{check.assumption} ({check.finding})" for check in failed)
    if row.tolerance is not None:
        return "agrees" if row.scatter is not None and row.scatter <= row.tolerance else "differs"
    if outside:
        return "differs"
    if not row.detectable <= TOO_COARSE:
        return "too short"
    return "agrees"


def holm(p_values: Sequence[float], familywise: float) -> list[bool]:
    """Which hypotheses are rejected (Holm, Scandinavian Journal of Statistics 6, 1979): step down from the smallest."""
    order = np.argsort(p_values, kind="stable")
    rejected = [False] * len(p_values)
    for done, index in enumerate(order):
        if p_values[int(index)] > familywise / (len(p_values) - done):
            break
        rejected[int(index)] = True
    return rejected
