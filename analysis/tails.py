"""Percentiles and what lies beyond them: quantiles with intervals, exceedance, mean excess, decay, fan-out.

Percentiles are of the inverted CDF (the smallest observation x with F(x) >= q), so they are always something that
happened; what never finished counts as +inf. An interval is given only where at least ten independent observations lie
beyond the quantile. Peaks over a threshold are in ``analysis/extremes.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.intervals import Estimate, TooShort, correlation_time

Array = NDArray[np.float64]

LEAST_BEYOND = 10  # effective observations beyond a quantile that is shown


class TooFewSamples(TooShort):
    """Fewer than ten effective observations lie beyond the quantile asked for: no number is honest there."""


@dataclass(frozen=True)
class QuantileInterval:
    """A quantile between two order statistics, in the data's unit; ``high`` is inf where censored values reach it."""

    q: float
    value: float
    low: float
    high: float
    confidence: float
    n: int
    effective_n: float
    kind: Literal["confidence"] = "confidence"


def quantile(x: ArrayLike, q: float, nan: Literal["inf", "drop", "raise"] = "inf") -> float:
    """The smallest observation x with F(x) >= q (q in [0, 1]; 0 gives the smallest), as numpy's ``inverted_cdf``.

    ``nan`` says what a missing value means: by default censored (did not end: +inf); ``"drop"`` where it means
    "undefined", as the TPOT of a single token. Raises ValueError without observations.
    """
    ordered = np.sort(_values(x, nan))
    return float(ordered[rank(q, ordered.size) - 1])


def quantile_interval(
    x: ArrayLike,
    q: float,
    confidence: float = 0.95,
    effective_n: float | None = None,
    nan: Literal["inf", "drop", "raise"] = "inf",
) -> QuantileInterval:
    """Distribution-free interval between order statistics: ranks from Binomial(n, q) (David and Nagaraja, 7.1).

    ``x`` in the order in which it happened: exceedances of the quantile that come in clusters are worth fewer
    observations, and the ranks are those of a sample of ``effective_n`` = n / correlation time of the indicator
    (x > quantile), unless that is given. It is the larger of the times at the quantile and at one with three times as
    many exceedances, since few exceedances often look less clustered than they are; for the same reason a clustered sample
    is taken to be worth less still, by 1 + 10 / (effective observations beyond q), which vanishes with n (coverage:
    docs/statistics.md). A sample in sorted order has lost its order: it is taken as independent. Raises ``TooFewSamples``
    where effective n times min(q, 1 - q) is below 10 (a correlation time within the noise of an independent series, 1 + 8 /
    sqrt(n), is no reason to refuse), and where an end of the interval would lie outside the data.
    """
    values = _values(x, nan)
    n = values.size
    if not 0 < q < 1 or not 0 < confidence < 1:
        raise ValueError(f"q and confidence must lie in (0, 1), found {q} and {confidence}")
    ordered = np.sort(values)
    value = float(ordered[rank(q, n) - 1])
    worth = float(n) if effective_n is None else float(effective_n)
    noise = 1.0
    if effective_n is None and n >= 4 and not _monotone(values):
        inner = max(0.5, 1 - 3 * (1 - q)) if q >= 0.5 else min(0.5, 3 * q)
        levels = (value, float(ordered[rank(inner, n) - 1]))
        worth = n / max(correlation_time((values > level).astype(float)) for level in levels)
        noise = min(n / worth, 1 + 8 / math.sqrt(n))
    if not 0 < worth <= n:
        raise ValueError(f"effective_n must lie in (0, {n}], found {worth}")
    # 1e-9: n (1 - q) of a round n and q must not fall below ten by a rounding error.
    beyond = worth * noise * min(q, 1 - q) + 1e-9
    if beyond < LEAST_BEYOND:
        needed = max(n + 1, math.ceil(LEAST_BEYOND / min(q, 1 - q) * n / worth - 1e-9))
        side = "beyond" if q >= 0.5 else "below"
        raise TooFewSamples(f"{worth * min(q, 1 - q):.1f} effective observations {side} the {q:g} quantile", n, needed)
    if n / worth > 1 + 8 / math.sqrt(n):
        worth /= 1 + LEAST_BEYOND / (worth * min(q, 1 - q))
    size = max(1, math.floor(worth))
    tail = (1 - confidence) / 2
    first = int(stats.binom.ppf(tail, size, q))
    last = int(stats.binom.ppf(1 - tail, size, q)) + 1
    if (first < 1 and np.isfinite(ordered[0])) or (last > size and np.isfinite(ordered[-1])):
        needed = math.ceil(2 * n * LEAST_BEYOND / max(worth * min(q, 1 - q), 1e-9))
        raise TooFewSamples(f"{worth:.1f} effective observations: the interval has no end within the data", n, needed)
    low = -np.inf if first < 1 else float(ordered[max(1, math.floor(first * n / size)) - 1])
    high = np.inf if last > size else float(ordered[min(n, math.ceil(last * n / size)) - 1])
    return QuantileInterval(q, value, low, high, confidence, n, worth)


def ccdf(x: ArrayLike, nan: Literal["inf", "drop", "raise"] = "inf") -> tuple[Array, Array]:
    """Distinct finite values, ascending, and the share of all observations (censored ones included) above each."""
    values = _values(x, nan)
    points, counts = np.unique(values, return_counts=True)
    above = 1 - np.cumsum(counts) / values.size
    finite = np.isfinite(points)
    return points[finite], np.maximum(above[finite], 0.0)


def mean_excess(x: ArrayLike, thresholds: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """E[X - u | X > u] and the number above, at each threshold (nan where nothing is above).

    Flat for an exponential tail, rising along a line for a Pareto tail, falling for a light one (Embrechts, Klüppelberg
    and Mikosch, Modelling Extremal Events, 6.2.2). Raises ValueError on infinite values: their excess is unknown.
    """
    ordered = np.sort(_values(x, "raise"))
    if np.isinf(ordered).any():
        raise ValueError(f"{np.isinf(ordered).sum()} observations are infinite (censored): their excess is unknown")
    u = np.asarray(thresholds, dtype=float)
    first = np.searchsorted(ordered, u, side="right")
    number = ordered.size - first
    sums = np.concatenate([np.cumsum(ordered[::-1])[::-1], [0.0]])[first]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(number > 0, sums / number - u, np.nan), number.astype(np.int64)


@dataclass(frozen=True)
class DecayRate:
    """Exponential decay per unit of x, fitted above the 90 % quantile, and above the 97 % quantile beside it."""

    rate: Estimate
    further_out: Estimate
    verdict: str  # of the comparison with theory; "" where none was given


def decay_rate(x: ArrayLike, theory: float | None = None, confidence: float = 0.95) -> DecayRate:
    """The rate theta in P(X > x) ~ C exp(-theta x), by maximum likelihood (1 / mean excess), and against theory.

    The asymptotic rate shows only far out. Verdict: "agrees" where both fits hold the theoretical rate; "pre-asymptotic"
    where only the nearer one misses it, or the rate moves towards it by more than both half-widths; else "differs".
    Clusters are allowed for by the correlation time of the exceedances. Raises ``TooFewSamples`` below ten effective
    exceedances further out.
    """
    values = _values(x, "raise")
    near, far = (_exponential_tail(values, q, confidence) for q in (0.9, 0.97))
    if theory is None:
        return DecayRate(near, far, "")
    if near.contains(theory) and far.contains(theory):
        verdict = "agrees"
    elif not near.contains(theory) and (far.contains(theory) or _moves(near, far, theory)):
        verdict = "pre-asymptotic"
    else:
        verdict = "differs"
    return DecayRate(near, far, verdict)


def fan_out(x: ArrayLike, legs: int, q: float) -> float:
    """The q-quantile of the slowest of ``legs`` independent requests: the quantile at q^(1/legs) of one.

    Dean and Barroso, The tail at scale, 2013. Legs sent together meet the same queue: see ``fan_out_adjacent``.
    Raises ``TooFewSamples`` where that quantile lies beyond the data.
    """
    _check_legs(legs)
    values = _values(x, "inf")
    level = q ** (1 / legs)
    if values.size * (1 - level) + 1e-9 < LEAST_BEYOND:
        needed = math.ceil(LEAST_BEYOND / (1 - level))
        raise TooFewSamples(
            f"the slowest of {legs} at {q:g} is one request's {level:.6g} quantile", values.size, needed
        )
    return quantile(values, level)


def fan_out_adjacent(x: ArrayLike, legs: int, q: float) -> float:
    """The q-quantile of the slowest of ``legs`` requests that followed each other, as they were measured.

    Neighbours share a queue, so their maximum is smaller than that of independent legs with the same percentiles. The
    observations left over at the end make no whole group. Raises ``TooFewSamples`` below ten groups beyond q.
    """
    _check_legs(legs)
    values = _values(x, "inf")
    groups = values.size // legs
    if groups * (1 - q) + 1e-9 < LEAST_BEYOND:
        raise TooFewSamples(f"{groups} groups of {legs}", values.size, math.ceil(legs * LEAST_BEYOND / (1 - q)))
    return quantile(values[: groups * legs].reshape(groups, legs).max(axis=1), q)


def serial(x: ArrayLike, legs: int, q: float, seed: int = 0, samples: int = 200_000) -> float:
    """The q-quantile of the sum of ``legs`` independent requests one after the other, by resampling the observations."""
    _check_legs(legs)
    values = _values(x, "inf")
    if samples * (1 - q) < LEAST_BEYOND or values.size * (1 - q) + 1e-9 < LEAST_BEYOND:
        raise TooFewSamples(f"the {q:g} quantile of a sum", values.size, math.ceil(LEAST_BEYOND / (1 - q)))
    rng = np.random.default_rng(seed)
    total = np.zeros(samples)
    for _ in range(legs):
        total += values[rng.integers(0, values.size, samples)]
    return quantile(total, q)


def _moves(near: Estimate, far: Estimate, theory: float) -> bool:
    """Whether the further rate lies nearer to the theoretical one by more than the two half-widths together."""
    return abs(near.mean - theory) - abs(far.mean - theory) > near.half_width + far.half_width


def _exponential_tail(values: Array, q: float, confidence: float) -> Estimate:
    threshold = quantile(values, q)
    excess = values[values > threshold] - threshold
    worth = excess.size / correlation_time((values > threshold).astype(float))
    if worth < LEAST_BEYOND:
        needed = math.ceil(values.size * LEAST_BEYOND / max(worth, 1e-9))
        raise TooFewSamples(f"{worth:.1f} effective exceedances of the {q:g} quantile", values.size, needed)
    rate = 1 / float(excess.mean())
    half = float(stats.norm.ppf((1 + confidence) / 2)) * rate / math.sqrt(worth)
    return Estimate(rate, half, int(excess.size), worth, confidence, f"exponential tail above {q:g}")


def rank(q: float, n: int) -> int:
    """The inverted CDF's rank: smallest k >= 1 with k / n >= q, whatever the rounding of q n."""
    if not 0 <= q <= 1:
        raise ValueError(f"q must lie in [0, 1], found {q}")
    k = math.ceil(q * n)
    while k > 1 and (k - 1) / n >= q:
        k -= 1
    while k / n < q:
        k += 1
    return max(1, k)


def _values(x: ArrayLike, nan: Literal["inf", "drop", "raise"]) -> Array:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"expected one series, found an array of shape {values.shape}")
    missing = np.isnan(values)
    if missing.any():
        if nan == "raise":
            raise ValueError(f"{missing.sum()} of {values.size} observations are nan")
        values = values[~missing] if nan == "drop" else np.where(missing, np.inf, values)
    if values.size == 0:
        raise TooFewSamples("no observations", 0, 1)
    return values


def _monotone(values: Array) -> bool:
    return bool((values[1:] >= values[:-1]).all() or (values[1:] <= values[:-1]).all())


def _check_legs(legs: int) -> None:
    if legs < 1:
        raise ValueError(f"legs must be at least 1, found {legs}")
