"""How often does a verdict blame a correct run, and how often does it notice what is wrong?

    python -m benchmarks.verdicts [--runs 1000] [--seed 1]

Correct runs are stationary M/M/1 queues with two observers and Poisson arrivals; the wrong ones have 30 % longer services (or
waits), bursts, a changing rate, a clock that was moved or rows that were lost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrivals import conditional_uniform_ks, dispersion_curve, gap_correlation, lewis_ks
from analysis.intervals import TooShort, batch_means
from analysis.littles_law import littles_law
from analysis.operational_laws import pasta
from analysis.runs import Run
from analysis.stability import backlog_stability, stability
from analysis.tails import decay_rate, quantile_interval
from analysis.warmup import check_cut

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], "Sample"]


@dataclass(frozen=True)
class Sample:
    """One queue with a seat: stamps of its requests, in order."""

    arrivals: Array
    service: Array
    done: Array

    @property
    def waits(self) -> Array:
        """Before service, in seconds."""
        return self.done - self.service - self.arrivals

    def run(self, clock: float = 0.0, kept: float = 1.0) -> Run:
        """As two observers record it: the client 1 ms away on either side, its clock moved, a share of its rows kept."""
        n = self.arrivals.size
        t = np.concatenate([self.arrivals + 1e-3, self.done])
        change = np.concatenate([np.ones(n), -np.ones(n)])
        order = np.argsort(t, kind="stable")
        gauge = pd.DataFrame(
            {"t_s": t[order], "inbox": 0, "waiting": 0, "running": np.cumsum(change[order]).astype(int)}
        )
        requests = pd.DataFrame(
            {
                "request_id": np.arange(n).astype(str),
                "intended_s": self.arrivals + clock,
                "sent_s": self.arrivals + clock,
                "received_s": self.arrivals + 1e-3,
                "scheduled_s": np.maximum(self.done - self.service, self.arrivals + 1e-3),
                "done_s": self.done,
                "finished_s": self.done + 1e-3 + clock,
                "finish_reason": "length",
            }
        )
        lost = np.random.default_rng(n).random(n) >= kept
        return Run.from_tables(requests[~lost].reset_index(drop=True), gauge=gauge)


def queue(rng: np.random.Generator, n: int, rho: float, longer: float = 1.0, bursts: bool = False) -> Sample:
    """M/M/1 with 1 request a second in its steady state; ``longer`` services, or arrivals whose rate changes by 9:1."""
    service = rng.exponential(rho * longer, n)
    if bursts:
        slow = np.repeat(rng.random(n // 20 + 1) < 0.5, 20)[:n]
        gaps = rng.exponential(np.where(slow, 1.8, 0.2))
    else:
        gaps = rng.exponential(1.0, n)
    arrivals = np.cumsum(gaps)
    first = (
        rng.exponential(rho * longer / (1 - rho * longer)) if rho * longer < 1 and rng.random() < rho * longer else 0.0
    )
    work = np.cumsum(service)
    done = work + np.maximum(np.maximum.accumulate(arrivals - work + service), arrivals[0] + first)
    return Sample(arrivals, service, done)


def share(verdict: Callable[[Sample], str], draw: Draw, runs: int, seed: int) -> tuple[float, float]:
    """Shares of "wrong" and of "undecided" among the verdicts on ``runs`` samples."""
    found = []
    for k in range(runs):
        try:
            found.append(verdict(draw(np.random.default_rng([seed, k]))))
        except TooShort:
            found.append("undecided")
    return found.count("wrong") / runs, found.count("undecided") / runs


def _named(text: str, wrong: tuple[str, ...]) -> str:
    if text.startswith(wrong):
        return "wrong"
    return "undecided" if text.startswith(("undecided", "too short")) else "right"


def cases(n: int) -> list[tuple[str, Callable[[Sample], str], str, Draw, str, Draw]]:
    """(verdict, its function, correct case, how to draw it, wrong case, how to draw that)."""
    rho = 0.6
    theory = rho / (1 - rho) * rho

    def right(rng: np.random.Generator) -> Sample:
        return queue(rng, n, rho)

    def slower(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n, rho)
        return Sample(sample.arrivals, sample.service, sample.done + 0.3 * sample.waits)

    def overloaded(rng: np.random.Generator) -> Sample:
        return queue(rng, n, 1.3)

    def heavy(rng: np.random.Generator) -> Sample:
        return queue(rng, n, 0.9)

    def full(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n, rho)
        backlog = sample.done + np.maximum(0.0, n / 8 - (1 - rho) * sample.arrivals)  # drains by n / 8 / (1 - rho)
        return Sample(sample.arrivals, sample.service, backlog)

    def bursty(rng: np.random.Generator) -> Sample:
        return queue(rng, n, rho, bursts=True)

    def ramp(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n, rho)
        end = sample.arrivals[-1]
        return Sample(end * (sample.arrivals / end) ** 0.75, sample.service, sample.done)

    def test(p: Callable[[Sample], float]) -> Callable[[Sample], str]:
        return lambda s: "wrong" if p(s) < 0.01 else "right"

    def curve(s: Sample) -> str:
        band = dispersion_curve(s.arrivals, 0, s.arrivals[-1], confidence=0.99)
        return "right" if band.poisson else "wrong"

    def quantile(s: Sample) -> str:
        interval = quantile_interval(s.waits, 0.9)
        truth = float(np.log(rho / 0.1) * rho / (1 - rho))
        return "right" if interval.low <= truth <= interval.high else "wrong"

    rate = (1 - rho) / rho
    closed = (lambda s: _named(littles_law(s.run()).verdict, ("open",)), "M/M/1 0.6", right)
    return [
        ("closure", *closed, "2 % of rows lost", right),
        (
            "stability",
            lambda s: _named(stability(s.run()).verdict, ("unstable",)),
            "M/M/1 0.9",
            heavy,
            "load 1.3",
            overloaded,
        ),
        (
            "stability, stamps only",
            lambda s: _named(
                backlog_stability(s.arrivals, s.done, 0, s.arrivals[-1], s.service).verdict, ("unstable",)
            ),
            "M/M/1 0.9",
            heavy,
            "load 1.3",
            overloaded,
        ),
        (
            "mean wait (95 %)",
            lambda s: "right" if batch_means(s.waits).contains(theory) else "wrong",
            "M/M/1 0.6",
            right,
            "waits 30 % longer",
            slower,
        ),
        ("p90 wait (95 %)", quantile, "M/M/1 0.6", right, "waits 30 % longer", slower),
        (
            "decay rate",
            lambda s: _named(decay_rate(s.waits, rate).verdict, ("differs", "pre-asymptotic")),
            "M/M/1 0.6",
            right,
            "waits 30 % longer",
            slower,
        ),
        (
            "planned cut",
            lambda s: _named(check_cut(s.waits, n // 10).verdict, ("too early",)),
            "M/M/1 0.6",
            right,
            "starts with backlog",
            full,
        ),
        (
            "PASTA (95 %)",
            lambda s: _named(pasta(s.run()).verdict, ("differs",)),
            "M/M/1 0.6",
            right,
            "bursts 9:1",
            bursty,
        ),
        (
            "Lewis KS (1 %)",
            test(lambda s: lewis_ks(s.arrivals, 0, s.arrivals[-1] + 1e-9).p_value),
            "Poisson",
            right,
            "bursts 9:1",
            bursty,
        ),
        (
            "uniform KS (1 %)",
            test(lambda s: conditional_uniform_ks(s.arrivals, 0, s.arrivals[-1] + 1e-9).p_value),
            "Poisson",
            right,
            "rate falls by half",
            ramp,
        ),
        ("dispersion (1 %)", curve, "Poisson", right, "bursts 9:1", bursty),
        (
            "gap correlation (1 %)",
            test(lambda s: gap_correlation(s.arrivals).p_value),
            "Poisson",
            right,
            "bursts 9:1",
            bursty,
        ),
    ]


def spoiled_closure(s: Sample) -> str:
    """The closure on a run that lost 2 % of its rows."""
    return _named(littles_law(s.run(kept=0.98)).verdict, ("open",))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000, help="requests a run")
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"{options.runs} runs of {options.requests} requests a case, seed {options.seed}")
    correct = f"{'correct case':<12} {'blamed':>7} {'undecided':>10}"
    print(f"{'verdict':<24} {correct}   {'wrong case':<19} {'noticed':>8} {'undecided':>10}")
    for name, verdict, good, draw, bad, spoil in cases(options.requests):
        alarm, unsure = share(verdict, draw, options.runs, options.seed)
        power, unclear = share(spoiled_closure if name == "closure" else verdict, spoil, options.runs, options.seed + 1)
        print(
            f"{name:<24} {good:<12} {100 * alarm:>6.1f}% {100 * unsure:>9.1f}%   {bad:<19} {100 * power:>7.1f}% "
            f"{100 * unclear:>9.1f}%",
            flush=True,
        )
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
