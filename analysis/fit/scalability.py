"""How throughput grows with concurrency: the Universal Scalability Law and Amdahl's, with intervals or "not identified".

Of concurrency only: requests kept in flight (clients of a closed loop, seats, batch rows), never of a load offered from
outside, where throughput is what was offered until it no longer can be.

``python -m analysis.fit.scalability RESULTS`` fits both to the closed loops of a study, experiment by experiment.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from analysis.runs import Run
from analysis.study import open_study

Array = NDArray[np.float64]

WIDEST = 1.0  # an interval wider than this, relative to its value, does not identify a parameter


@dataclass(frozen=True)
class Parameter:
    """A fitted value with its profile-likelihood interval. ``note``: "" or "not identified: ..." with the reason."""

    value: float
    low: float
    high: float
    note: str

    @property
    def identified(self) -> bool:
        """Whether the data tell the value at all."""
        return not self.note

    def __str__(self) -> str:
        return self.note or f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Scalability:
    """X(n) = lam n / (1 + sigma (n - 1) + kappa n (n - 1)).

    Attributes:
        lam: throughput of one alone (1/s).
        sigma: share that queues for something serial; 1 / sigma is the limit of X / lam without kappa.
        kappa: cost of each pair's agreeing; 0 in Amdahl's law.
        peak: concurrency at which throughput is largest, sqrt((1 - sigma) / kappa).
        misfit: root mean square of the relative error.
        levels: distinct concurrencies fitted; ``largest`` of them.
    """

    lam: Parameter
    sigma: Parameter
    kappa: Parameter
    peak: Parameter
    misfit: float
    levels: int
    largest: float
    confidence: float
    law: str  # "USL" or "Amdahl"

    def throughput(self, n: ArrayLike) -> Array:
        """X(n), 1/s."""
        return _law(np.asarray(n, dtype=float), self.lam.value, self.sigma.value, self.kappa.value)


def fit_usl(concurrency: ArrayLike, throughput: ArrayLike, confidence: float = 0.95) -> Scalability:
    """The Universal Scalability Law (Gunther, Guerrilla Capacity Planning, 2007, chapter 4) by least squares in log X.

    Args:
        concurrency: requests in flight, >= 1, at least four different levels; repeats of a level tell the scatter.
        throughput: completions a second at each, shape as ``concurrency``.
        confidence: of each interval: those values at which the residual sum of squares, minimised over the other
            parameters, stays below its minimum times 1 + F(1, n - 3) / (n - 3) (profile likelihood, Bates and Watts,
            Nonlinear Regression Analysis, 1988, 6.1.2), so that a bound (kappa >= 0) cuts it honestly.

    Raises:
        ValueError: fewer levels than parameters + 1, values that are not positive and finite.

    >>> n = np.array([1, 2, 4, 8, 16, 32.0])
    >>> fit = fit_usl(n, 100 * n / (1 + 0.05 * (n - 1) + 0.001 * n * (n - 1)))
    >>> round(fit.sigma.value, 6), round(fit.kappa.value, 6), round(fit.peak.value, 2)
    (0.05, 0.001, 30.82)
    """
    return _fit(concurrency, throughput, confidence, coherent=True)


def fit_amdahl(concurrency: ArrayLike, throughput: ArrayLike, confidence: float = 0.95) -> Scalability:
    """Amdahl's law (1967): the same with kappa = 0, at least three levels. Throughput n / step(n) of an engine whose step
    takes a + b n is exactly this (``amdahl_of_step_time``)."""
    return _fit(concurrency, throughput, confidence, coherent=False)


def amdahl_of_step_time(base_s: float, per_request_s: float) -> tuple[float, float]:
    """(lam, sigma) of an engine whose step takes ``base_s + per_request_s * n`` seconds and gives n tokens.

    n / (a + b n) = lam n / (1 + sigma (n - 1)) with lam = 1 / (a + b), sigma = b / (a + b): an identity, so that a + b n and
    USL with kappa = 0 are one model.

    >>> amdahl_of_step_time(0.03, 0.01)
    (25.0, 0.25)
    """
    if not (base_s >= 0 and per_request_s >= 0 and base_s + per_request_s > 0):
        raise ValueError(f"base_s = {base_s!r}, per_request_s = {per_request_s!r}: give seconds, one of them above 0")
    alone = base_s + per_request_s
    return 1.0 / alone, per_request_s / alone


def _law(n: Array, lam: float, sigma: float, kappa: float) -> Array:
    return lam * n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))


class _Squares:
    """The sum of squares of log X - log law over (log lam, sigma, kappa), minimised with any of the three held fixed."""

    def __init__(self, n: Array, x: Array, coherent: bool) -> None:
        self._n, self._logs = n, np.log(x)
        self.low = np.array([-700.0, 0.0, 0.0])
        self.high = np.array([700.0, 1.0, 1.0 if coherent else 0.0])

    def minimum(
        self, starts: Sequence[tuple[float, float]], held: int | None = None, value: float = 0.0
    ) -> tuple[float, Array]:
        """The smallest sum, and where; ``starts`` are (sigma, kappa) to search from."""
        free = [i for i in range(3) if i != held and self.high[i] > self.low[i]]
        fixed = np.array([0.0, 0.0, 0.0])
        if held is not None:
            fixed[held] = value

        def whole(part: Array) -> Array:
            point = fixed.copy()
            point[free] = part
            return point

        def residual(part: Array) -> Array:
            log_lam, sigma, kappa = whole(part)
            return np.asarray(log_lam + np.log(_law(self._n, 1.0, sigma, kappa)) - self._logs)

        def jacobian(part: Array) -> Array:
            _, sigma, kappa = whole(part)
            rest = self._n - 1.0
            below = 1.0 + sigma * rest + kappa * self._n * rest
            columns = np.column_stack([np.ones_like(below), -rest / below, -self._n * rest / below])
            return np.asarray(columns[:, free])

        found: list[tuple[float, Array]] = []
        for sigma, kappa in starts:
            # Strictly inside, as the trust-region method wants it.
            sigma, kappa = min(max(sigma, 1e-9), 1 - 1e-9), min(max(kappa, 1e-12), 1 - 1e-9)
            start = np.array([float(np.mean(self._logs - np.log(_law(self._n, 1.0, sigma, kappa)))), sigma, kappa])[
                free
            ]
            bounds = (self.low[free], self.high[free])
            scale = np.array([1.0, 0.1, 0.01])[free]
            result = optimize.least_squares(
                residual, start, jacobian, bounds=bounds, x_scale=scale, xtol=1e-12, ftol=1e-12, gtol=1e-12
            )
            found.append((2.0 * float(result.cost), whole(result.x)))
        return min(found, key=lambda item: item[0])


def _fit(concurrency: ArrayLike, throughput: ArrayLike, confidence: float, coherent: bool) -> Scalability:
    n, x = _checked(concurrency, throughput, 4 if coherent else 3, confidence)
    squares = _Squares(n, x, coherent)
    best, at = squares.minimum([(0.02, 1e-4), (0.5, 1e-2)])  # a nearly parallel machine, a nearly serial one
    log_lam, sigma, kappa = at.tolist()
    freedom = n.size - (3 if coherent else 2)
    # Exact data leave rounding alone; a relative error of 1e-9 is not worth an interval.
    limit = max(best, n.size * 1e-18) * (1.0 + float(stats.f.ppf(confidence, 1, freedom)) / freedom)

    def interval(which: int, value: float, low: float, high: float) -> tuple[float, float]:
        return _interval(lambda v: squares.minimum([(sigma, kappa)], which, v)[0], value, limit, low, high)

    l_low, l_high = interval(0, log_lam, log_lam - 5.0, log_lam + 5.0)
    sigmas = interval(1, sigma, 0.0, 1.0)
    kappas = interval(2, kappa, 0.0, 1.0) if coherent else (0.0, 0.0)
    largest = float(n.max())
    return Scalability(
        lam=_parameter(math.exp(log_lam), math.exp(l_low), math.exp(l_high), "too few or too scattered levels"),
        sigma=_parameter(sigma, *sigmas, "the levels do not tell it from kappa, or from 0"),
        kappa=_kappa(kappa, *kappas) if coherent else Parameter(0.0, 0.0, 0.0, ""),
        peak=_peak(sigma, kappa, sigmas, kappas, largest, coherent),
        misfit=math.sqrt(best / n.size),
        levels=np.unique(n).size,
        largest=largest,
        confidence=confidence,
        law="USL" if coherent else "Amdahl",
    )


def _checked(concurrency: ArrayLike, throughput: ArrayLike, least: int, confidence: float) -> tuple[Array, Array]:
    n, x = np.asarray(concurrency, dtype=float), np.asarray(throughput, dtype=float)
    if n.shape != x.shape or n.ndim != 1:
        raise ValueError(f"concurrency and throughput must be two equal series, found {n.shape} and {x.shape}")
    if not (np.isfinite(n).all() and np.isfinite(x).all() and (n >= 1).all() and (x > 0).all()):
        raise ValueError("concurrency must be finite and at least 1, throughput finite and above 0")
    levels = np.unique(n).size
    if levels < least:
        raise ValueError(f"{levels} levels of concurrency can't carry a fit; measure at least {least}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), found {confidence}")
    return n, x


def _interval(
    profile: Callable[[float], float], best: float, limit: float, low: float, high: float
) -> tuple[float, float]:
    """Where the profile stays below ``limit``, around ``best``, within [low, high]."""

    def edge(end: float) -> float:
        # From the minimum outwards in growing strides, so that a minimum near a bound is not stepped over.
        inside, stride = best, max(1e-3 * abs(best), 1e-6) * (1.0 if end > best else -1.0)
        while abs(inside + stride - best) < abs(end - best) and profile(inside + stride) <= limit:
            inside, stride = inside + stride, 2.0 * stride
        outside = inside + stride if abs(inside + stride - best) < abs(end - best) else end
        if outside == end and profile(end) <= limit:
            return end
        reach = abs(outside - inside) * 1e-3
        while abs(outside - inside) > reach:
            middle = 0.5 * (inside + outside)
            inside, outside = (middle, outside) if profile(middle) <= limit else (inside, middle)
        return outside

    return edge(low), edge(high)


def _parameter(value: float, low: float, high: float, reason: str) -> Parameter:
    wide = value <= 0 or (high - low) > 2 * WIDEST * value
    return Parameter(value, low, high, f"not identified: {reason} ({low:.3g} to {high:.3g})" if wide else "")


def _kappa(value: float, low: float, high: float) -> Parameter:
    if low <= 0:
        return Parameter(
            value, low, high, f"not identified: 0 is as good, no falling throughput seen (at most {high:.3g})"
        )
    return _parameter(value, low, high, "too scattered")


def _peak(
    sigma: float,
    kappa: float,
    sigmas: tuple[float, float],
    kappas: tuple[float, float],
    largest: float,
    coherent: bool,
) -> Parameter:
    def at(s: float, k: float) -> float:
        return max(1.0, math.sqrt((1.0 - s) / k)) if k > 1e-15 else math.inf  # less is rounding

    if not coherent:
        return Parameter(math.inf, math.inf, math.inf, "")
    value, low, high = at(sigma, kappa), at(sigmas[1], kappas[1]), at(sigmas[0], kappas[0])
    note = ""
    if math.isinf(high):
        note = f"not identified: without a sure kappa there may be none (at least {low:.3g})"
    elif value > 2 * largest:
        note = f"not identified: {value:.3g} lies far beyond the largest level {largest:g}"
    return Parameter(value, low, high, note)


def closed_sweep(runs: Sequence[Run]) -> tuple[Array, Array]:
    """Clients and completions a second (in the measured window) of each closed loop among ``runs``."""
    clients, rates = [], []
    for run in runs:
        sessions = run.requests["session_id"].dropna().astype(str)
        if sessions.empty or not sessions.str.startswith("client-").all():
            continue
        start, end = run.window
        rows = run.requests[run.requests["finish_reason"].isin(["stop", "length"])]
        ended = rows["finished_s"].to_numpy(dtype=float)
        clients.append(float(sessions.nunique()))
        rates.append(float(np.count_nonzero((ended >= start) & (ended < end))) / (end - start))
    return np.array(clients), np.array(rates)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code (2: bad input)."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.fit.scalability", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("results", type=Path, help="a results folder")
    options = parser.parse_args(arguments)
    try:
        study = open_study(options.results)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shown = False
    for name in dict.fromkeys(str(run.meta.get("experiment", "")) for run in study.runs):
        clients, rates = closed_sweep([run for run in study.runs if str(run.meta.get("experiment", "")) == name])
        for fit in (fit_usl, fit_amdahl) if clients.size else ():
            try:
                found = fit(clients, rates)
            except ValueError as error:
                print(f"{name}: {error}")
                break
            values = f"lam {found.lam}; sigma {found.sigma}; kappa {found.kappa}; peak {found.peak}"
            print(f"{name}, {found.law}: {values}; misfit {found.misfit:.1%} over {found.levels} levels")
        shown = shown or clients.size > 0
    if not shown:
        print("the study has no closed loop: scalability is fitted over the number of clients")
    return 0


if __name__ == "__main__":
    sys.exit(main())
