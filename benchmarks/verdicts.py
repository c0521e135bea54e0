"""How often does a verdict blame a correct run, and how often does it notice what is wrong?

    python -m benchmarks.verdicts [--runs 1000] [--seed 1] [--jobs 2] [--publish docs/statistics.md]

Correct runs are stationary M/M/1 queues with two observers and Poisson arrivals; the wrong ones have waits 30 % longer,
bursts, a changing rate, a clock that was moved, rows that were lost, a slower machine or a late generator
(``verdict_cases``). Rows are published as they are known.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from analysis.intervals import TooShort
from benchmarks.published import markdown, publish
from benchmarks.verdict_cases import Case, Draw, Verdict, cases

HEADER = ["verdict", "correct runs", "blamed", "undecided", "wrong runs", "noticed", "undecided"]
WIDTHS = [26, 24, 7, 9, 20, 7, 9]


def share(verdict: Verdict, draw: Draw, runs: int, seed: int) -> tuple[float, float]:
    """Shares of "wrong" and of "undecided" among the verdicts on ``runs`` samples."""
    found = []
    for k in range(runs):
        try:
            found.append(verdict(draw(np.random.default_rng([seed, k]))))
        except TooShort:
            found.append("undecided")
    return found.count("wrong") / runs, found.count("undecided") / runs


def measure(index: int, requests: int, runs: int, seed: int) -> list[str]:
    """The row of one of the cases."""
    case: Case = cases(requests)[index]
    alarm, unsure = share(case.verdict, case.right, runs, seed)
    power, unclear = share(case.verdict, case.wrong, runs, seed + 1)
    correct = [case.name, case.right_name, f"{100 * alarm:.1f} %", f"{100 * unsure:.1f} %"]
    return [*correct, case.wrong_name, f"{100 * power:.1f} %", f"{100 * unclear:.1f} %"]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000, help="requests a run")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--publish", type=Path, help="a document that the table is put into")
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"{options.runs} runs of {options.requests} requests a case, seed {options.seed}")
    print("  ".join(f"{name:<{width}}" for name, width in zip(HEADER, WIDTHS, strict=True)))
    about = f"--runs {options.runs} --seed {options.seed} --publish {options.publish}"
    row_of = partial(measure, requests=options.requests, runs=options.runs, seed=options.seed)
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(row_of, range(len(cases(options.requests)))):
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, WIDTHS, strict=True)), flush=True)
            rows.append(row)
            if options.publish is not None:
                publish(options.publish, "verdicts", f"python -m benchmarks.verdicts {about}", markdown(HEADER, rows))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
