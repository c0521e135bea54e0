"""How much of a series belongs to the way into steady state.

The cut of a study is planned and common to all its replications; MSER-5 and Welch's moving average check that plan. A cut
chosen from each run's own data would itself bias the runs that are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.intervals import TooShort, correlation_time

Array = NDArray[np.float64]

BATCH = 5


def mser5(x: ArrayLike) -> int:
    """The number of leading observations to cut: a multiple of five, at most half of the series.

    White 1997 and White, Cobb and Spratt 2000: of all cuts of the series of means of five, the one with the smallest
    marginal standard error, sum((y - mean)^2) / m^2 over the m that are kept. Only the first half is searched, since few
    remaining batches make the criterion small by chance. Raises ``TooShort`` below ten batches.
    """
    return BATCH * int(np.argmin(_mser(x)[0]))


@dataclass(frozen=True)
class WarmupCheck:
    """Whether a planned cut (in observations) suffices. ``verdict``: "enough", "too early: ..." or "too short: ..."."""

    planned: int
    mser5: int
    verdict: str


def check_cut(x: ArrayLike, planned: int) -> WarmupCheck:
    """Hold a planned cut against MSER-5 on the whole series.

    "too short" when MSER would rather cut more than half: then the series has not settled, or barely. "too early" when
    the cut is below MSER's and what lies between the two is not noise: its mean differs from that of the rest by more
    than seven standard errors, correlation allowed for (a correct run may start within a long busy period; at seven, one
    M/M/1 run in forty is blamed: benchmarks/verdicts.py).
    """
    first_half, everywhere = _mser(x)
    series = np.asarray(x, dtype=float)
    if not 0 <= planned < series.size:
        raise ValueError(f"the planned cut must lie in [0, {series.size}), found {planned}")
    best = BATCH * int(np.argmin(first_half))
    if int(np.argmin(everywhere)) >= first_half.size and everywhere.min() < 0.9 * first_half.min():
        return WarmupCheck(planned, best, f"too short: steady only after more than half of {series.size} observations")
    if planned < best:
        between, rest = series[planned:best], series[best:]
        error = float(rest.std(ddof=1)) * np.sqrt(min(correlation_time(rest), between.size) / between.size)
        if abs(float(between.mean() - rest.mean())) > 7 * error:
            return WarmupCheck(planned, best, f"too early: MSER-5 cuts {best} observations, planned were {planned}")
    return WarmupCheck(planned, best, "enough")


def welch(runs: ArrayLike, window: int) -> Array:
    """Welch's moving average of the mean over replications (runs, n) -> (n - window,), to be looked at.

    Welch 1983; Law and Kelton 9.5.1: at i < window the average spans 2i + 1 points, later 2 window + 1.
    """
    data = np.atleast_2d(np.asarray(runs, dtype=float))
    n = data.shape[1]
    if data.ndim != 2 or not np.isfinite(data).all():
        raise ValueError("expected finite replications of equal length, one a row")
    if not 1 <= window <= n // 4:
        raise ValueError(f"window must lie in [1, {n // 4}] (a quarter of {n} observations), found {window}")
    total = np.concatenate([[0.0], np.cumsum(data.mean(axis=0))])
    i = np.arange(n - window)
    reach = np.minimum(i, window)
    return (total[i + reach + 1] - total[i - reach]) / (2 * reach + 1)


def welch_cut(runs: ArrayLike, window: int, tolerance: float = 0.05) -> int:
    """The first observation from which Welch's average stays within ``tolerance`` (relative) of its second half's mean.

    Raises ``TooShort`` when that happens only in the second half.
    """
    average = welch(runs, window)
    level = float(average[average.size // 2 :].mean())
    outside = np.flatnonzero(np.abs(average - level) > tolerance * abs(level))
    cut = 0 if outside.size == 0 else int(outside[-1]) + 1
    if cut > average.size // 2:
        n = int(np.asarray(runs).shape[-1])
        raise TooShort(f"the moving average still leaves ± {100 * tolerance:g} % at observation {cut}", n, 2 * cut)
    return cut


def _mser(x: ArrayLike) -> tuple[Array, Array]:
    """MSER of each cut, in batches: over the first half, and over all cuts that leave at least five batches."""
    series = np.asarray(x, dtype=float)
    if series.ndim != 1 or not np.isfinite(series).all():
        raise ValueError("expected one finite series")
    batches = series.size // BATCH
    if batches < 10:
        raise TooShort("MSER-5 wants ten batches of five", series.size, 10 * BATCH)
    y = series[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    y = y - y.mean()  # sums of squares lose no digits to a large mean
    kept = np.arange(batches, 0, -1)
    total = np.cumsum(y[::-1])[::-1]
    squares = np.cumsum(y[::-1] ** 2)[::-1]
    criterion = np.maximum(squares - total**2 / kept, 0.0) / kept**2
    return criterion[: batches // 2 + 1], criterion[: batches - 4]
