"""Intervals for the mean of what a run gives: a correlated, skewed series of one length, or a handful of replications.

Each answer says what it is about (``kind``: *confidence* in a parameter, or *prediction* of a run's own result), how many
observations stand behind it, and how many independent ones these are worth. Where a series is too short for the
correlation found in it, ``TooShort`` is raised instead of an interval that would be too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Kind = Literal["confidence", "prediction"]

# Chosen by benchmarks/coverage.py (AR(1) .9, M/M/1 at rho .5 and .8): with fewer observations a series often looks less
# correlated than it is, and the interval that is then given misses.
OBSERVATIONS_PER_CORRELATION_TIME = 100
LEAST_CORRELATED = 1000  # observations below which a correlated series does not reveal how correlated it is
CORRELATED = 2.0  # correlation times above this are not the noise of an uncorrelated series
LEAST_CYCLES = 3000  # a queue's cycles are so skewed that fewer give intervals that miss
BOOTSTRAP_CORRELATION_TIMES = 600
# An interval is widened by 1 + this * correlation time / n: batches are still a little correlated. In a queue's run of short
# waits more than the width is too small: it looks less correlated than the process is, too.
WIDENING, QUEUE_WIDENING = 10, 30


class TooShort(ValueError):
    """The data can't carry the statement asked for. ``.n`` is what there is, ``.needed`` what it would take at least."""

    def __init__(self, reason: str, n: int, needed: int | None = None):
        self.reason, self.n, self.needed = reason, n, needed
        super().__init__(f"too short: {reason}" + ("" if needed is None else f" (n = {n}, at least {needed} needed)"))


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval ``mean ± half_width``, in the data's unit."""

    mean: float
    half_width: float
    n: int  # observations used
    effective_n: float  # independent observations they are worth
    confidence: float
    method: str
    kind: Kind = "confidence"

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies within the interval."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        share = f"{100 * self.confidence:g} % {self.kind}"
        return f"{self.mean:.4g} ± {self.half_width:.2g} ({share}, {self.method}, n = {self.n})"


def autocorrelation(x: ArrayLike, max_lag: int | None = None) -> NDArray[np.float64]:
    """Sample autocorrelation at lags 0..max_lag (default n - 1), by FFT; 1 at lag 0.

    The biased estimator (divided by n at every lag), as Box and Jenkins, and statsmodels' ``acf`` by default. A constant
    series has no autocorrelation: zeros beyond lag 0.
    """
    series = _series(x)
    n = series.size
    last = n - 1 if max_lag is None else min(max_lag, n - 1)
    deviation = series - series.mean()
    scale = float(np.max(np.abs(deviation)))
    result = np.zeros(last + 1)
    result[0] = 1.0
    # A constant series leaves rounding errors as its deviations.
    if scale > 1e-12 * max(1e-300, float(np.max(np.abs(series)))):
        deviation = deviation / scale
        size = 1 << int(2 * n - 1).bit_length()
        spectrum = np.fft.rfft(deviation, size)
        covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[: last + 1]
        result[1:] = covariance[1:] / covariance[0]
    return result


def correlation_time(x: ArrayLike) -> float:
    """Integrated autocorrelation time 1 + 2 sum of rho_k, at least 1: n / this is the effective sample size.

    Geyer's initial monotone sequence (Practical Markov chain Monte Carlo, Statistical Science 7, 1992): sums of
    neighbouring pairs are added while they are positive and forced not to rise, which keeps out the noise of the far
    lags. Biased low in short series; ``batch_means`` allows for that.
    """
    rho = autocorrelation(x)
    pairs = rho.size // 2
    if pairs == 0:
        return 1.0
    sums = rho[0 : 2 * pairs : 2] + rho[1 : 2 * pairs : 2]
    negative = np.flatnonzero(sums <= 0)
    kept = np.minimum.accumulate(sums[: negative[0]] if negative.size else sums)
    return max(1.0, 2.0 * float(kept.sum()) - 1.0)


def effective_sample_size(x: ArrayLike) -> float:
    """The number of independent observations that would estimate the mean as well: n / correlation time."""
    series = _series(x)
    return series.size / correlation_time(series)


def batch_means(x: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The mean of a stationary, correlated series, with a t interval from non-overlapping batch means.

    Law and Kelton, Simulation Modeling and Analysis, 9.5.3: 10 batches, 20 once the series is long (400 correlation
    times). In a queue the standard error grows with the square of the mean (heavy-traffic diffusion, Whitt, Management
    Science 35, 1989), so a run with short waits also claims more precision than it has; for a correlated series of
    non-negative values the interval is therefore taken on the scale of 1/mean, where the error does not depend on the
    mean, and the wider side is given on both sides: h / (1 - h / mean). Batches of a correlated series are still a little
    correlated themselves; the factor 1 + 10 correlation times / n (30 for values that are never negative, whose short runs
    also look less correlated) allows for that and vanishes with n. Coverage: docs/statistics.md.

    Raises ``TooShort`` below 100 correlation times (estimated), and below 1,000 observations when they are correlated.
    """
    series = _series(x)
    _check_confidence(confidence)
    n = series.size
    time = correlation_time(series) if n >= 4 else 1.0
    needed = math.ceil(OBSERVATIONS_PER_CORRELATION_TIME * time)
    if time > CORRELATED:
        needed = max(needed, LEAST_CORRELATED)
    if n < needed:
        raise TooShort(f"correlation time of {time:.3g} observations, for batch means", n, needed)
    batches = 20 if n >= 400 * time else 10
    size = n // batches
    means = series[n - size * batches :].reshape(batches, size).mean(axis=1)
    mean = float(series.mean())
    half = float(stats.t.ppf((1 + confidence) / 2, batches - 1) * means.std(ddof=1) / math.sqrt(batches))
    if time > CORRELATED and float(series.min()) >= 0:
        half = _reciprocal(half * (1 + QUEUE_WIDENING * time / n), mean, n)
    elif time > CORRELATED:
        half *= 1 + WIDENING * time / n
    return Estimate(mean, half, n, n / time, confidence, f"batch means ({batches} batches)")


def replications(means: ArrayLike, confidence: float = 0.95, kind: Kind = "confidence") -> Estimate:
    """The mean over independent replications with Student's t interval (Law and Kelton, 9.4.1).

    ``kind="prediction"`` gives the interval for the mean of one further replication. Needs two; five or more are wanted
    before an interval is worth much (t is 12.7 with two, 2.8 with five), each at least 40 correlation times long: means of
    shorter runs of a queue are so skewed that five of them cover less than 93 % (docs/statistics.md).
    """
    series = _series(means)
    _check_confidence(confidence)
    n = series.size
    if n < 2:
        raise TooShort("an interval over replications", n, 2)
    spread = float(series.std(ddof=1)) * math.sqrt((1 + 1 / n) if kind == "prediction" else 1 / n)
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * spread
    return Estimate(float(series.mean()), half, n, float(n), confidence, "replications", kind)


def regenerative(x: ArrayLike, starts: ArrayLike, confidence: float = 0.95) -> Estimate:
    """The mean from regenerative cycles: ratio estimator with the delta method (Crane and Lemoine 1977; Law 9.5.3).

    ``starts`` holds the indices at which a cycle begins (an arrival that finds the system empty, say). Observations
    before the first start and after the last belong to no complete cycle and are left out; ``.n`` counts the rest.
    The interval of non-negative values is widened as that of ``batch_means``. Raises ``TooShort`` below 3,000 complete
    cycles: most are short, a few hold nearly all waits, and with fewer of those the interval misses.
    """
    series = _series(x)
    _check_confidence(confidence)
    first = np.unique(np.asarray(starts, dtype=np.int64))
    if first.size and (first[0] < 0 or first[-1] >= series.size):
        raise ValueError(f"cycle starts must be indices in [0, {series.size}); found {first[0]} to {first[-1]}")
    cycles = max(0, first.size - 1)
    if cycles < LEAST_CYCLES:
        raise TooShort("complete regenerative cycles", cycles, LEAST_CYCLES)
    lengths = np.diff(first).astype(float)
    sums = np.add.reduceat(series[: first[-1]], first[:-1])
    mean = float(sums.sum() / lengths.sum())
    spread = float(np.std(sums - mean * lengths, ddof=1)) / (float(lengths.mean()) * math.sqrt(cycles))
    half = float(stats.t.ppf((1 + confidence) / 2, cycles - 1)) * spread
    half = _reciprocal(half, mean, series.size) if float(series.min()) >= 0 else half
    return Estimate(mean, half, int(lengths.sum()), float(cycles), confidence, f"regenerative ({cycles} cycles)")


def stationary_bootstrap(
    x: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], float] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 1000,
) -> Estimate:
    """Stationary bootstrap (Politis and Romano 1994) of any statistic of a series (its mean by default), through ``arch``.

    The mean block length is Politis and White's, corrected by Patton (``arch.bootstrap.optimal_block_length``). The
    basic interval's larger side is given on both sides. Raises ``TooShort`` below 600 correlation times.
    """
    series = _series(x)
    _check_confidence(confidence)
    time = correlation_time(series)
    needed = math.ceil(BOOTSTRAP_CORRELATION_TIMES * time)
    if series.size < needed:
        raise TooShort(f"correlation time of {time:.3g} observations, for the bootstrap", series.size, needed)
    measure: Callable[[NDArray[np.float64]], float] = (lambda v: float(np.mean(v))) if statistic is None else statistic
    from arch.bootstrap import StationaryBootstrap, optimal_block_length  # takes seconds to import

    block = max(1.0, float(optimal_block_length(series)["stationary"].iloc[0]))
    resampler: Any = StationaryBootstrap(block, series, seed=seed)
    low, high = resampler.conf_int(measure, reps=resamples, method="basic", size=confidence).ravel()
    value = float(measure(series))
    half = max(value - float(low), float(high) - value)
    return Estimate(
        value, half, series.size, series.size / time, confidence, f"stationary bootstrap (block {block:.3g})"
    )


def smallest_detectable(estimate: Estimate, power: float = 0.9) -> float:
    """The smallest true deviation from a model's mean that an interval of this width would notice with this power.

    In the estimate's unit. A deviation d is noticed when the interval leaves out the model's mean; its error is taken
    as normal with the standard deviation that the half-width implies.
    """
    z = float(stats.norm.ppf((1 + estimate.confidence) / 2))
    return estimate.half_width * (1 + float(stats.norm.ppf(power)) / z)


def samples_for_quantile(
    q: float,
    relative_half_width: float,
    confidence: float = 0.95,
    pilot: ArrayLike | None = None,
    correlation: float = 1.0,
) -> int:
    """Observations needed to know the q-quantile to ± ``relative_half_width`` of itself.

    From the asymptotic variance q(1 - q) / (n f(x_q)^2) (David and Nagaraja, Order Statistics, 10.2). The density at the
    quantile comes from ``pilot`` observations (difference quotient of their quantiles around q), or, without one, from an
    exponential distribution. ``correlation`` is the correlation time of the exceedances (1: independent). Never below
    the 10 / (1 - q) effective observations under which no quantile is shown.
    """
    if not 0 < q < 1 or relative_half_width <= 0 or correlation < 1:
        raise ValueError(
            f"q must lie in (0, 1), relative_half_width above 0, correlation at least 1; found {q}, "
            f"{relative_half_width}, {correlation}"
        )
    _check_confidence(confidence)
    if pilot is None:
        sparsity = 1 / ((1 - q) * -math.log1p(-q))  # 1 / (f(x_q) x_q), of any exponential
    else:
        sample = _series(pilot)
        step = min(q, 1 - q) / 3
        low, centre, high = np.quantile(sample, [q - step, q, q + step], method="inverted_cdf")
        if sample.size * (1 - q) < 10 or high <= low or centre <= 0:
            raise TooShort("the pilot does not reach this quantile", sample.size, math.ceil(10 / (1 - q)))
        sparsity = float((high - low) / (2 * step) / centre)
    z = float(stats.norm.ppf((1 + confidence) / 2))
    independent = q * (1 - q) * (z * sparsity / relative_half_width) ** 2
    return math.ceil(correlation * max(independent, 10 / min(q, 1 - q)))


def _reciprocal(half: float, mean: float, n: int) -> float:
    """The upper side of an interval taken on the scale of 1/mean and brought back."""
    if half >= mean > 0:
        raise TooShort(f"the half-width ({half:.3g}) is as large as the mean ({mean:.3g})", n, 4 * n)
    return half / (1 - half / mean) if mean > 0 else half


def _series(x: ArrayLike) -> NDArray[np.float64]:
    series = np.asarray(x, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"expected one series, found an array of shape {series.shape}")
    if series.size == 0:
        raise TooShort("no observations", 0, 2)
    bad = int(np.count_nonzero(~np.isfinite(series)))
    if bad:
        raise ValueError(
            f"{bad} of {series.size} observations are nan or infinite: a mean does not exist with them; "
            "leave them out knowingly, or ask for a quantile"
        )
    return series


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), found {confidence}")
