"""Beyond the data: a generalised Pareto distribution fitted to the peaks over a threshold.

Latencies cluster (one full queue makes many slow requests), so exceedances close together count as one peak. What comes
out is an extrapolation, labelled as such, never a percentile that was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.tails import TooFewSamples, quantile

LEAST_PEAKS = 50


@dataclass(frozen=True)
class ParetoTail:
    """P(X > u + y) = rate (1 + shape y / scale)^(-1/shape), from ``peaks`` cluster maxima.

    ``shape`` > 0 is heavier than exponential, < 0 has an end; standard errors are those of maximum likelihood.
    ``extremal_index`` is clusters over exceedances: its inverse is the mean number of slow requests at a time.
    """

    threshold: float
    shape: float
    scale: float
    shape_error: float
    scale_error: float
    rate: float
    peaks: int
    exceedances: int
    extremal_index: float
    ks_distance: float

    def exceedance(self, x: float) -> float:
        """P(X > x) for x at or above the threshold, extrapolated."""
        if x < self.threshold:
            raise ValueError(f"the fit holds above its threshold {self.threshold:.6g}; asked for {x:.6g}")
        return self.rate * float(stats.genpareto.sf(x - self.threshold, self.shape, scale=self.scale))

    def quantile(self, q: float) -> float:
        """The extrapolated q-quantile of one observation (1 - q no larger than ``rate``)."""
        if not 1 - self.rate <= q < 1:
            raise ValueError(f"the fit holds for q in [{1 - self.rate:.6g}, 1), asked for {q:.6g}")
        return self.threshold + float(stats.genpareto.isf((1 - q) / self.rate, self.shape, scale=self.scale))


def peaks_over_threshold(x: ArrayLike, threshold: float | None = None, run_length: int | None = None) -> ParetoTail:
    """Fit the tail of ``x``, in the order in which it happened, above ``threshold`` (default: its 95 % quantile).

    Coles, An Introduction to Statistical Modeling of Extreme Values, 4.2 and 5.3.2: exceedances separated by fewer than
    ``run_length`` observations below the threshold are one cluster, of which the largest is kept; by default the run length
    follows from Ferro and Segers' intervals estimator (J. R. Statist. Soc. B 65, 2003). Maximum likelihood through
    ``scipy.stats.genpareto``. Raises ``TooFewSamples`` below 50 clusters.
    """
    values = np.asarray(x, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError("peaks over threshold need one finite series: a censored value has no known height")
    level = quantile(values, 0.95) if threshold is None else float(threshold)
    where = np.flatnonzero(values > level)
    if where.size < LEAST_PEAKS:
        raise TooFewSamples(f"{where.size} exceedances of {level:.6g}", values.size, _scaled(values.size, where.size))
    gaps = np.diff(where)
    if run_length is None:
        # The largest theta * N of the gaps lie between clusters, the rest within them.
        index = intervals_estimator(gaps)
        clusters = max(1, math.ceil(index * where.size))
        cut = np.sort(gaps)[::-1][min(clusters, gaps.size) - 1]
        run_length = max(1, int(cut) - 1)
    borders = np.flatnonzero(gaps > run_length) + 1
    peaks = np.array([values[part].max() for part in np.split(where, borders)]) - level
    if peaks.size < LEAST_PEAKS:
        raise TooFewSamples(
            f"{peaks.size} clusters of exceedances of {level:.6g}", values.size, _scaled(values.size, peaks.size)
        )
    shape, _, scale = stats.genpareto.fit(peaks, floc=0)
    distance = stats.kstest(peaks, "genpareto", args=(shape, 0, scale)).statistic
    # Smith 1987: variances (1 + k)^2 / n and 2 scale^2 (1 + k) / n, valid for k > -1/2
    regular = max(1 + shape, 0.0)
    return ParetoTail(
        threshold=level,
        shape=float(shape),
        scale=float(scale),
        shape_error=float(regular / math.sqrt(peaks.size)) if shape > -0.5 else float("nan"),
        scale_error=float(scale * math.sqrt(2 * regular / peaks.size)) if shape > -0.5 else float("nan"),
        rate=where.size / values.size,
        peaks=int(peaks.size),
        exceedances=int(where.size),
        extremal_index=peaks.size / where.size,
        ks_distance=float(distance),
    )


def intervals_estimator(gaps: NDArray[np.int64]) -> float:
    """Ferro and Segers' extremal index, from the numbers of steps between successive exceedances; in (0, 1]."""
    if gaps.size == 0:
        return 1.0
    t = gaps.astype(float)
    if t.max() <= 2:
        numerator, denominator = 2 * t.sum() ** 2, t.size * (t**2).sum()
    else:
        numerator, denominator = 2 * (t - 1).sum() ** 2, t.size * ((t - 1) * (t - 2)).sum()
    return float(min(1.0, numerator / denominator)) if denominator > 0 else 1.0


def _scaled(n: int, found: int) -> int:
    return math.ceil(n * LEAST_PEAKS / max(found, 1))
