"""Is an arrival stream what its name says? Tests to run before a model that assumes it is believed.

Poisson: two Kolmogorov-Smirnov tests that need no rate, the index of dispersion over time scales, the correlation of
neighbouring gaps, and the phase of arrivals within a second. Bursts: a two-state Markov-modulated Poisson process fitted
by maximum likelihood. Distributions of gaps or sizes: a goodness of fit that allows for parameters having been fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from analysis.intervals import TooShort, autocorrelation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TestResult:
    """A statistic, its p-value under the null hypothesis, and the sample size."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    statistic: float
    p_value: float
    n: int


def conditional_uniform_ks(arrivals: ArrayLike, start: float, end: float) -> TestResult:
    """Given their number, a Poisson process's arrivals in [start, end] are independent uniforms: one-sample KS.

    Cox and Lewis, The Statistical Analysis of Series of Events, 6.2. Notices a rate that changes over the window, hardly
    the shape of the gaps (Kim and Whitt, Naval Research Logistics 61, 2014): see ``lewis_ks``.
    """
    return _uniform_ks((_inside(arrivals, start, end) - start) / (end - start))


def lewis_ks(arrivals: ArrayLike, start: float, end: float) -> TestResult:
    """KS after Durbin's transformation of the ordered gaps (Durbin 1961, Lewis 1965): powerful against other gaps.

    The n + 1 gaps, the last up to ``end``, in ascending order c_1 <= c_2 ...: the normalised spacings
    (n + 2 - j)(c_j - c_{j-1}) / T add up to 1, and their partial sums are again ordered uniforms if the arrivals were.
    """
    times = _inside(arrivals, start, end) - start
    duration = end - start
    gaps = np.sort(np.diff(times, prepend=0.0, append=duration))
    n = times.size
    spacing = np.arange(n + 1, 0, -1) * np.diff(gaps, prepend=0.0) / duration
    return _uniform_ks(np.cumsum(spacing)[:-1])


@dataclass(frozen=True)
class Dispersion:
    """Variance over mean of the counts in windows of each width (seconds); 1 at every width for a Poisson process.

    ``low`` and ``high``: where a Poisson process's index lies with the stated probability at each width (chi-square).
    """

    width_s: Array
    index: Array
    low: Array
    high: Array
    windows: NDArray[np.int64]

    @property
    def poisson(self) -> bool:
        """Whether the whole curve lies within the band (the band's probability is shared among the widths)."""
        return bool(((self.index >= self.low) & (self.index <= self.high)).all())


def dispersion_curve(
    arrivals: ArrayLike, start: float, end: float, widths: ArrayLike | None = None, confidence: float = 0.95
) -> Dispersion:
    """Index of dispersion for counts (Cox and Lewis 4.5; Sriram and Whitt 1986) over window widths.

    By default eight widths from one mean gap to a twentieth of [start, end], spaced evenly in the logarithm. The band is
    of Bonferroni's kind: all widths together lie within it with ``confidence``. Exact for many arrivals a window or many
    windows: (m - 1) I is then about chi-square with m - 1 degrees of freedom.
    """
    times = _inside(arrivals, start, end)
    duration = end - start
    if widths is None:
        if times.size < 40:
            raise TooShort("arrivals for a dispersion curve", times.size, 40)
        width = np.geomspace(duration / times.size, duration / 20, 8)
    else:
        width = np.atleast_1d(np.asarray(widths, dtype=float))
        if (width <= 0).any() or (width > duration / 2).any():
            raise ValueError(f"widths must lie in (0, {duration / 2:.6g}] (half of the window), found {width.tolist()}")
    windows = np.floor(duration / width + 1e-9).astype(np.int64)
    index = np.empty(width.size)
    for k, (w, m) in enumerate(zip(width.tolist(), windows.tolist(), strict=True)):
        counts = np.bincount(np.minimum(((times - start) / w).astype(np.int64), m), minlength=m + 1)[:m]
        index[k] = counts.var(ddof=1) / counts.mean() if counts.any() else math.nan
    tail = (1 - confidence) / 2 / width.size
    freedom = windows - 1
    low, high = stats.chi2.ppf(tail, freedom) / freedom, stats.chi2.isf(tail, freedom) / freedom
    return Dispersion(width, index, low, high, windows)


def gap_correlation(arrivals: ArrayLike) -> TestResult:
    """Lag-1 correlation of the gaps between arrivals; for independent ones about normal with deviation 1/sqrt(n)."""
    gaps = np.diff(np.sort(np.asarray(arrivals, dtype=float)))
    if gaps.size < 30:
        raise TooShort("gaps for a correlation", gaps.size, 30)
    value = float(autocorrelation(gaps, 1)[1])
    return TestResult(value, float(2 * stats.norm.sf(abs(value) * math.sqrt(gaps.size))), gaps.size)


def phase(arrivals: ArrayLike, period_s: float = 1.0, cells: int = 500) -> TestResult:
    """Largest share of arrivals in any one of ``cells`` cells of the period, with the p-value of its count (binomial,
    times the number of cells). Timers that tick, and plans that start anew each second, show here."""
    times = np.asarray(arrivals, dtype=float)
    if times.size == 0:
        raise TooShort("arrivals for a phase histogram", 0, 1)
    cell = np.minimum((np.mod(times, period_s) / period_s * cells).astype(np.int64), cells - 1)
    largest = int(np.bincount(cell, minlength=cells).max())
    p = min(1.0, cells * float(stats.binom.sf(largest - 1, times.size, 1 / cells)))
    return TestResult(largest / times.size, p, times.size)


@dataclass(frozen=True)
class MMPP2:
    """A two-state Markov-modulated Poisson process: rates (per second) in the states, and of leaving them."""

    rates: tuple[float, float]  # the slower state first
    leave: tuple[float, float]
    log_likelihood: float
    poisson_log_likelihood: float
    n: int

    @property
    def mean_rate(self) -> float:
        """Arrivals per second in the long run."""
        r1, r2 = self.leave
        return (self.rates[0] * r2 + self.rates[1] * r1) / (r1 + r2)

    def dispersion(self, width_s: float) -> float:
        """The index of dispersion for counts of this process at a width (Fischer and Meier-Hellstern 1993, eq. 12)."""
        (l1, l2), (r1, r2) = self.rates, self.leave
        r = r1 + r2
        excess = 2 * (l1 - l2) ** 2 * r1 * r2 / (r**2 * (l1 * r2 + l2 * r1))
        return 1 + excess * (1 + np.expm1(-r * width_s) / (r * width_s))

    @property
    def better_than_poisson(self) -> bool:
        """Whether BIC prefers the three further parameters."""
        return 2 * (self.log_likelihood - self.poisson_log_likelihood) > 3 * math.log(self.n)


def fit_mmpp2(arrivals: ArrayLike, most: int = 10_000) -> MMPP2:
    """Maximum likelihood of a two-state MMPP (Rydén, Comm. Stat. Stochastic Models 10, 1994) over the first ``most`` gaps.

    The start is the best of a few burst lengths and ratios of rates; the optimum is Nelder-Mead's, in logarithms.
    Raises ``TooShort`` below 200 gaps and ValueError on equal stamps (a rate would grow without bound).
    """
    gaps = np.diff(np.sort(np.asarray(arrivals, dtype=float)))[:most]
    if gaps.size < 200:
        raise TooShort("gaps for an MMPP", gaps.size, 200)
    if (gaps <= 0).any():
        raise ValueError(f"{np.count_nonzero(gaps <= 0)} gaps are 0: spread or jitter equal stamps first")
    rate = gaps.size / float(gaps.sum())

    def cost(parameters: Array) -> float:
        if np.abs(parameters).max() > 25:
            return math.inf
        l1, l2, r1, r2 = np.exp(parameters) * rate
        return -_mmpp2_log_likelihood(gaps, float(l1), float(l2), float(r1), float(r2))

    starts = [np.log([1 / s, s, 1 / b, 1 / b]) for s in (1.5, 3.0) for b in (5.0, 50.0, 500.0)]
    first = min(starts, key=cost)
    found = optimize.minimize(cost, first, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-2, "maxiter": 600})
    l1, l2, r1, r2 = (float(v) for v in np.exp(found.x) * rate)
    if l1 > l2:
        l1, l2, r1, r2 = l2, l1, r2, r1
    poisson = gaps.size * (math.log(rate) - 1)
    return MMPP2((l1, l2), (r1, r2), -float(found.fun), poisson, gaps.size)


def goodness_of_fit(
    x: ArrayLike,
    distribution: Any,
    known: dict[str, float] | None = None,
    statistic: Literal["ad", "ks", "cvm"] = "ad",
    seed: int = 0,
    resamples: int = 999,
    most: int = 2000,
) -> TestResult:
    """Test of a family (``scipy.stats.gamma``, say) whose parameters are fitted to the same data: parametric bootstrap.

    The p-value of a plain KS test with fitted parameters is far too large; ``scipy.stats.goodness_of_fit`` fits each
    resample anew. ``known`` fixes parameters (``{"loc": 0}``). Of more than ``most`` values an even selection in their
    order is tested (its size is ``.n``), which also thins out correlation.
    """
    values = np.asarray(x, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError("expected one finite series")
    if values.size > most:
        values = values[np.linspace(0, values.size - 1, most).astype(np.int64)]
    result = stats.goodness_of_fit(
        distribution,
        values,
        known_params=known or {},
        statistic=statistic,
        n_mc_samples=resamples,
        rng=np.random.default_rng(seed),
    )
    return TestResult(float(result.statistic), float(result.pvalue), values.size)


def _mmpp2_log_likelihood(gaps: Array, l1: float, l2: float, r1: float, r2: float) -> float:
    """log pi prod(exp((Q - L) x_i) L) 1, by eigenvalues and a product in pairs: log2(n) array steps instead of n."""
    # The symmetric form of Q - L has the same eigenvalues and an orthogonal basis.
    a, d, b = -(r1 + l1), -(r2 + l2), math.sqrt(r1 * r2)
    middle, half = (a + d) / 2, math.hypot((a - d) / 2, b)
    big, small = middle + half, middle - half
    # exp(M x) = ((M - small) e^(big x) - (M - big) e^(small x)) / (big - small), for the original M
    matrix = np.array([[a, r1], [r2, d]])
    identity = np.eye(2)
    up = (matrix - small * identity) / (big - small)
    down = (matrix - big * identity) / (big - small)
    rates = np.array([l1, l2])
    decay = np.exp((small - big) * gaps)[:, None, None]
    product = (up - down * decay) * rates  # times e^(big x), taken out
    logs = big * float(gaps.sum())
    while product.shape[0] > 1:
        odd = product[-1:] if product.shape[0] % 2 else None
        product = product[: product.shape[0] // 2 * 2]
        product = product[0::2] @ product[1::2]
        if odd is not None:
            product = np.concatenate([product, odd])
        scale = np.abs(product).max(axis=(1, 2), keepdims=True)
        if not (scale > 0).all() or not np.isfinite(scale).all():
            return -math.inf
        logs += float(np.log(scale).sum())
        product = product / scale
    seen = np.array([l1 * r2, l2 * r1])  # the state right before an arrival, up to its scale
    total = float((seen / seen.sum()) @ product[0] @ np.ones(2))
    return logs + math.log(total) if total > 0 else -math.inf


def _inside(arrivals: ArrayLike, start: float, end: float) -> Array:
    times = np.asarray(arrivals, dtype=float)
    if not end > start:
        raise ValueError(f"the window must end after it starts, found [{start}, {end}]")
    if not np.isfinite(times).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(times))} arrivals are nan or infinite")
    return np.sort(times[(times >= start) & (times <= end)])


def _uniform_ks(u: Array) -> TestResult:
    if u.size < 10:
        raise TooShort("arrivals for a Kolmogorov-Smirnov test", u.size, 10)
    result = stats.kstest(u, "uniform")
    return TestResult(float(result.statistic), float(result.pvalue), u.size)
