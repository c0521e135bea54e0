"""Do the intervals cover what they claim? Method by process by length, with the share of runs that get no interval.

    python -m benchmarks.coverage [--runs 1000] [--seed 1] [--quick] [--publish docs/statistics.md]

Every process starts in its steady state, and its mean and quantiles are known exactly: AR(1) with phi = .9, and the waits of
M/M/1 at rho = .5 and .8. "wrong" is the share of *all* runs that were given an interval without the truth in it. The length
at which a method is meant to be used is stated in correlation times of the process, which are known exactly too.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import signal, stats

from analysis.intervals import (
    BOOTSTRAP_CORRELATION_TIMES,
    LEAST_CORRELATED,
    LEAST_CYCLES,
    OBSERVATIONS_PER_CORRELATION_TIME,
    Estimate,
    TooShort,
    batch_means,
    correlation_time,
    regenerative,
    replications,
    stationary_bootstrap,
)
from analysis.tails import QuantileInterval, quantile_interval
from benchmarks.published import markdown, publish

Array = NDArray[np.float64]
Interval = Estimate | QuantileInterval

REPLICATION_TIMES = 40  # correlation times that a replication is at least meant to have
HEADER = ["process", "n", "method", "long enough", "runs", "refused", "covered", "wrong", "half-width"]
WIDTHS = [9, 6, 23, 11, 5, 8, 8, 7, 10]


@dataclass(frozen=True)
class Process:
    """``draw(rng, runs, n)`` gives one run a row; the truths are exact."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Array]
    mean: float
    quantile: Callable[[float], float]
    correlation_time: float
    cycle: float  # mean observations in a regenerative cycle (nan: it has none)


def ar1(phi: float) -> Process:
    """Gaussian, mean 0, stationary."""
    spread = 1 / np.sqrt(1 - phi**2)

    def draw(rng: np.random.Generator, runs: int, n: int) -> Array:
        noise = rng.normal(size=(runs, n))
        noise[:, 0] *= spread
        return np.asarray(signal.lfilter([1.0], [1.0, -phi], noise, axis=1))

    time = (1 + phi) / (1 - phi)
    return Process(f"AR(1) {phi:g}", draw, 0.0, lambda q: float(spread * stats.norm.ppf(q)), time, math.nan)


def mm1(rho: float) -> Process:
    """Waits with mean service 1 (Lindley): P(wait > t) = rho exp(-(1 - rho) t)."""

    def draw(rng: np.random.Generator, runs: int, n: int) -> Array:
        first = np.where(rng.random(runs) < rho, rng.exponential(1 / (1 - rho), runs), 0.0)
        steps = rng.exponential(1.0, (runs, n - 1)) - rng.exponential(1 / rho, (runs, n - 1))
        # Lindley's recursion unrolled: the walk above its running minimum, which is 0 once it falls below what was there.
        walk = np.concatenate([first[:, None], first[:, None] + np.cumsum(steps, axis=1)], axis=1)
        waits = walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0.0)
        waits[waits < 1e-9] = 0.0  # rounding: cycles are told by waits of exactly 0
        return waits

    # Asymptotic variance of the mean wait over its variance (Whitt, Management Science 35, 1989; Daley 1968).
    asymptotic = rho * (2 + 5 * rho - 4 * rho**2 + rho**3) / (1 - rho) ** 4
    time = asymptotic / (rho * (2 - rho) / (1 - rho) ** 2)

    def quantile(q: float) -> float:
        return max(0.0, float(np.log(rho / (1 - q)) / (1 - rho)))

    return Process(f"M/M/1 {rho:g}", draw, rho / (1 - rho), quantile, time, 1 / (1 - rho))


def independent(x: Array) -> Estimate:
    """What an interval that takes waits as independent claims."""
    half = 1.96 * float(x.std(ddof=1)) / np.sqrt(x.size)
    return Estimate(float(x.mean()), half, x.size, float(x.size), 0.95, "iid")


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


@dataclass(frozen=True)
class Method:
    """``interval`` of one row of ``data``; ``least`` is the length from which it is meant to be used, by its own rule."""

    name: str
    interval: Callable[[Array], Interval]
    truth: float
    data: Array
    least: float


def methods(process: Process, n: int, runs: int, seed: int) -> list[Method]:
    """What is tried on runs of ``n`` observations (replications: five of n/5 each)."""
    data = process.draw(np.random.default_rng([seed, n]), runs, n)
    time = process.correlation_time
    few = data[: min(runs, 200)]
    found = [Method("mean, taken as iid", independent, process.mean, data, math.nan)]
    least = max(OBSERVATIONS_PER_CORRELATION_TIME * time, LEAST_CORRELATED)
    found.append(Method("mean, batch means", batch_means, process.mean, data, least))
    parts = process.draw(np.random.default_rng([seed, n, 5]), 5 * runs, n // 5).mean(axis=1).reshape(runs, 5)
    found.append(Method("mean, five replications", replications, process.mean, parts, REPLICATION_TIMES * 5 * time))
    if n <= 16_000:  # beyond, it takes minutes; its coverage is settled by then
        least = BOOTSTRAP_CORRELATION_TIMES * time
        bootstrap = Method(
            "mean, bootstrap", lambda x: stationary_bootstrap(x, resamples=200), process.mean, few, least
        )
        found.append(bootstrap)
    if not math.isnan(process.cycle):
        least = LEAST_CYCLES * process.cycle
        found.append(
            Method("mean, regenerative", lambda x: regenerative(x, np.flatnonzero(x == 0)), process.mean, data, least)
        )
    for q in (0.5, 0.9, 0.99):
        # The exceedances' own correlation time is shorter than the values': ten effective ones beyond, at most.
        least = 10 / (1 - q) * exceedance_time(process, q, seed)
        found.append(
            Method(f"quantile {q:g}", lambda x, q=q: quantile_interval(x, q), process.quantile(q), data, least)
        )
    return found


@lru_cache
def exceedance_time(process: Process, q: float, seed: int) -> float:
    """Correlation time of the indicator that the q-quantile is exceeded, from one run of a million."""
    x = process.draw(np.random.default_rng([seed, 0]), 1, 1_000_000)[0]
    return correlation_time((x > process.quantile(q)).astype(float))


def table(runs: int, seed: int, lengths: tuple[int, ...]) -> Iterator[list[str]]:
    """One row a method, process and length, printed as they are known."""
    print("  ".join(f"{name:>{width}}" for name, width in zip(HEADER, WIDTHS, strict=True)))
    for process in (ar1(0.9), mm1(0.5), mm1(0.8)):
        for n in lengths:
            number = max(100, min(runs, 10_000_000 // n))
            for method in methods(process, n, number, seed):
                refused, covered, wrong, width = measure(method.interval, method.data, method.truth)
                stated = "" if math.isnan(method.least) else "yes" if n >= method.least else "no"
                shares = [f"{100 * refused:.1f} %", "" if refused == 1 else f"{100 * covered:.1f} %"]
                row = [process.name, str(n), method.name, stated, str(len(method.data)), *shares]
                row += [f"{100 * wrong:.1f} %", "" if refused == 1 else f"{width:.3f}"]
                print("  ".join(f"{cell:>{size}}" for cell, size in zip(row, WIDTHS, strict=True)), flush=True)
                yield row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="runs a cell (fewer for long ones)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three lengths, 100 runs a cell")
    parser.add_argument("--longest", type=int, default=32_000, help="leave out longer runs")
    parser.add_argument("--publish", type=Path, help="a document that the table is put into")
    options = parser.parse_args()
    lengths: tuple[int, ...] = (300, 1000, 2000, 4000, 8000, 16_000, 32_000)
    runs = options.runs
    if options.quick:
        lengths, runs = (300, 2000, 8000), 100
    lengths = tuple(n for n in lengths if n <= options.longest)
    print(f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, seed {options.seed}")
    began = time.perf_counter()
    rows = []
    about = f"--runs {runs} --seed {options.seed} --longest {options.longest} --publish {options.publish}"
    for row in table(runs, options.seed, lengths):
        rows += [row] if row[5] != "100.0 %" else []
        if options.publish is not None:
            publish(options.publish, "coverage", f"python -m benchmarks.coverage {about}", markdown(HEADER, rows))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
