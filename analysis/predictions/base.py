"""What a model says about one run, and how that is judged: a band, an error, the smallest deviation that would show.

A run is one draw. Its mean is therefore held against the *prediction band* of the model, where the means of runs of the same
length and warm-up would lie, and never against the model's steady-state mean alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.runs import Run
from analysis.study import name_of

Array = NDArray[np.float64]

FAMILYWISE = 0.01  # chance that any verdict of one report is "differs" or "assumption violated" by chance alone
BAND = 0.99
POWER = 0.9
# A run that would not notice a deviation of this share (with probability POWER) is too short to agree: three tenths, what a
# change of machine or setting worth talking about makes, and the deviation that benchmarks/verdicts.py measures power at.
TOO_COARSE = 0.3
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
    values: Array = field(default_factory=lambda: np.empty(0), repr=False, compare=False)  # the draws, to pool runs


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


def refuse(
    model: str,
    quantities: Sequence[tuple[str, str]],
    reason: str | None,
    checks: tuple[Check, ...] = (),
    n: int = 0,
) -> list[Prediction]:
    """A row without a prediction for each (quantity, unit), with the reason as its verdict."""
    return [Prediction(model, name, unit, checks, n=n, refused=reason or "") for name, unit in quantities]


def seed_of(run: Run) -> int:
    """A seed for the draws of this run: its own, so that the draws of two replications are independent."""
    return zlib.crc32(name_of(run).encode())


def band_of(draws: ArrayLike, measured: float, predicted: float) -> Band:
    """The band from simulated runs.

    The two-sided probability is by rank where at least ten draws lie further out, otherwise from a tail: a normal one, or
    with too few draws for the band's own ranks Student's for a further draw. That tail is of the logarithms where every
    draw is above 0, as means of latencies are: they are skewed to the right, and no band of them reaches below 0.

    Raises:
        ValueError: fewer than ten draws, or one that is not finite.
    """
    values = np.sort(np.asarray(draws, dtype=float))
    if values.size < 10 or not np.isfinite(values).all():
        raise ValueError(f"a band wants at least ten finite draws, found {np.count_nonzero(np.isfinite(values))}")
    tail = (1 - BAND) / 2
    ranked = values.size * tail >= _RANKED
    logs = bool(values[0] > 0) and not ranked
    scale = np.log(values) if logs else values
    mean, spread = float(scale.mean()), float(scale.std(ddof=1))
    widened = spread * math.sqrt(1 + 1 / values.size)
    law = stats.t(values.size - 1)
    further = min(int(np.count_nonzero(values >= measured)), int(np.count_nonzero(values <= measured)))
    if further >= _RANKED:
        p = 2 * further / values.size
    elif logs and measured <= 0:
        p = 0.0
    else:
        distance = abs((math.log(measured) if logs else measured) - mean)
        p = 2 * float(law.sf(distance / widened)) if widened > 0 else float(distance <= 1e-12 * abs(mean))
    if ranked:
        low, high = (float(value) for value in np.quantile(values, [tail, 1 - tail]))
    else:
        reach = float(law.ppf(1 - tail)) * widened
        low, high = (math.exp(mean - reach), math.exp(mean + reach)) if logs else (mean - reach, mean + reach)
        if values[0] >= 0:
            low = max(low, 0.0)  # what is never below 0 in any draw (a mean wait) has no band there
    z = float(stats.norm.ppf(POWER)) * spread
    noticed = high * math.exp(z) if logs else high + z
    return Band(low, high, min(1.0, p), max(noticed - predicted, 0.0), values.size, np.asarray(draws, dtype=float))


def normal_band(predicted: float, error: float, freedom: int, measured: float, seed: int = 0) -> Band:
    """The band of a measured mean whose standard error is known from ``freedom`` + 1 batches (Student's t)."""
    law = stats.t(max(freedom, 1))
    values = predicted + error * law.rvs(1000, random_state=np.random.default_rng(seed))
    reach = float(law.ppf((1 + BAND) / 2)) * error
    p = 2 * float(law.sf(abs(measured - predicted) / error)) if error > 0 else float(measured == predicted)
    detectable = reach + float(stats.norm.ppf(POWER)) * error
    return Band(max(predicted - reach, 0.0), predicted + reach, min(1.0, p), detectable, values.size, values)


def judge(predictions: Sequence[Prediction], familywise: float = FAMILYWISE) -> list[Prediction]:
    """Give each its verdict; everything tested here shares ``familywise`` by Holm's procedure.

    Verdicts: "agrees", "differs", "borderline" (outside its own band, but no further than one of so many may lie by chance),
    "too short", "assumption violated: ...", and whatever ``refused`` says. The checks of one model on one run are the same
    tests in each of its rows and count once.
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
    if row.band is not None and not row.band.low <= row.measured <= row.band.high:
        return "borderline"
    return "agrees" if row.detectable <= TOO_COARSE else "too short"


def holm(p_values: Sequence[float], familywise: float) -> list[bool]:
    """Which hypotheses are rejected (Holm, Scandinavian Journal of Statistics 6, 1979): step down from the smallest."""
    order = np.argsort(p_values, kind="stable")
    rejected = [False] * len(p_values)
    for done, index in enumerate(order):
        if p_values[int(index)] > familywise / (len(p_values) - done):
            break
        rejected[int(index)] = True
    return rejected
