"""Do the intervals cover what they claim? Method by process by length, with the share of runs that get no interval.

    python -m benchmarks.coverage [--runs 400] [--seed 1] [--quick]

Every process starts in its steady state, and its mean and quantiles are known exactly: AR(1) with phi = .9, and the waits of
M/M/1 at rho = .5 and .8. "wrong" is the share of *all* runs that were given an interval without the truth in it.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import stats

from analysis.intervals import Estimate, TooShort, batch_means, regenerative, replications, stationary_bootstrap
from analysis.tails import QuantileInterval, quantile_interval

Array = NDArray[np.float64]
Interval = Estimate | QuantileInterval


@dataclass(frozen=True)
class Process:
    """``draw(rng, runs, n)`` gives one run a row; the truths are exact."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Array]
    mean: float
    quantile: Callable[[float], float]


def ar1(phi: float) -> Process:
    """Gaussian, mean 0, stationary."""
    spread = 1 / np.sqrt(1 - phi**2)

    def draw(rng: np.random.Generator, runs: int, n: int) -> Array:
        x = rng.normal(0, spread, runs)
        out = np.empty((n, runs))
        for i in range(n):
            x = phi * x + rng.normal(size=runs)
            out[i] = x
        return np.ascontiguousarray(out.T)

    return Process(f"AR(1) {phi:g}", draw, 0.0, lambda q: float(spread * stats.norm.ppf(q)))


def mm1(rho: float) -> Process:
    """Waits with mean service 1 (Lindley): P(wait > t) = rho exp(-(1 - rho) t)."""

    def draw(rng: np.random.Generator, runs: int, n: int) -> Array:
        wait = np.where(rng.random(runs) < rho, rng.exponential(1 / (1 - rho), runs), 0.0)
        out = np.empty((n, runs))
        for i in range(n):
            out[i] = wait
            wait = np.maximum(wait + rng.exponential(1.0, runs) - rng.exponential(1 / rho, runs), 0.0)
        return np.ascontiguousarray(out.T)

    return Process(
        f"M/M/1 {rho:g}", draw, rho / (1 - rho), lambda q: max(0.0, float(np.log(rho / (1 - q)) / (1 - rho)))
    )


def independent(x: Array) -> Estimate:
    """What an interval that takes waits as independent claims."""
    half = 1.96 * float(x.std(ddof=1)) / np.sqrt(x.size)
    return Estimate(float(x.mean()), half, x.size, float(x.size), 0.95, "iid")


def of_five(x: Array) -> Estimate:
    """Five replications, each a fifth of the observations (their starts are not independent: a lower bound)."""
    return replications(x[: x.size // 5 * 5].reshape(5, -1).mean(axis=1))


def measure(method: Callable[[Array], Interval], data: Array, truth: float) -> tuple[float, float, float, float]:
    """Shares refused, covered (of those given) and wrong (of all), and the mean half-width over |truth| (or alone)."""
    given, held, width = 0, 0, 0.0
    for run in data:
        try:
            interval = method(run)
        except TooShort:
            continue
        given += 1
        held += interval.low <= truth <= interval.high
        width += (interval.high - interval.low) / 2
    runs = len(data)
    covered = held / given if given else float("nan")
    relative = width / given / (abs(truth) or 1.0) if given else float("nan")
    return 1 - given / runs, covered, (given - held) / runs, relative


def table(runs: int, seed: int, lengths: tuple[int, ...]) -> None:
    """Print one row a method, process and length."""
    print(
        f"{'process':<11} {'n':>6} {'runs':>5}  {'method':<22} {'refused':>8} {'covered':>8} {'wrong':>7} {'width':>7}"
    )
    for process in (ar1(0.9), mm1(0.5), mm1(0.8)):
        for n in lengths:
            number = max(50, min(runs, 8_000_000 // n))
            data = process.draw(np.random.default_rng([seed, n]), number, n)
            methods: list[tuple[str, Callable[[Array], Interval], float, int]] = [
                ("mean, taken as iid", independent, process.mean, number),
                ("mean, batch means", batch_means, process.mean, number),
                ("mean, five stretches", of_five, process.mean, number),
                ("mean, bootstrap", lambda x: stationary_bootstrap(x, resamples=200), process.mean, min(number, 60)),
            ]
            if process.name.startswith("M/M/1"):
                cycles = ("mean, regenerative", lambda x: regenerative(x, np.flatnonzero(x == 0)), process.mean, number)
                methods.append(cycles)
            for q in (0.5, 0.9, 0.99):
                methods.append((f"quantile {q:g}", lambda x, q=q: quantile_interval(x, q), process.quantile(q), number))
            for name, method, truth, used in methods:
                if name == "mean, bootstrap" and n > 4000:
                    continue  # minutes; its coverage is settled by then
                refused, covered, wrong, width = measure(method, data[:used], truth)
                print(
                    f"{process.name:<11} {n:>6} {used:>5}  {name:<22} {100 * refused:>7.1f}% {100 * covered:>7.1f}% "
                    f"{100 * wrong:>6.1f}% {width:>7.3f}",
                    flush=True,
                )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=400, help="runs a cell (fewer for long ones)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three lengths, 100 runs a cell")
    options = parser.parse_args()
    lengths: tuple[int, ...] = (300, 1000, 2000, 4000, 8000, 16_000, 32_000)
    runs = options.runs
    if options.quick:
        lengths, runs = (300, 2000, 8000), 100
    print(f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, seed {options.seed}")
    began = time.perf_counter()
    table(runs, options.seed, lengths)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
