"""Cost of scheduling alone: ``schedule()`` and ``update()`` of one step, without a model.

Target: at most 3 us per running sequence + 20 us a step at 16, 64 and 256 running, however many wait.

    python -m benchmarks.scheduler [--repeats 9] [--steps 200] [--plot growth.png]

Times are CPU times of the one thread, so that a machine shared with others blurs them less. Cases: *decode* (everybody
decodes, nobody can join), *kv* (as before, but the head of the line waits for KV blocks and is asked again every step),
*prefix* (as *kv*, and 8,192 tokens of the head's prompt are cached), *churn* (outputs of 32 tokens: each step some end and
others are admitted).
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.executors.placeholder import PlaceholderTokens
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request, Sequence

BLOCK_SIZE = 16
PROMPT_TOKENS = 48
RUNNING = (16, 64, 256)
WAITING = (0, 10_000)
CASES = ("decode", "kv", "prefix", "churn")
PREFIX_TOKENS = 8192


@dataclass(frozen=True)
class Timing:
    """CPU microseconds a step of one case, one value a repeat."""

    case: str
    running: int
    waiting: int
    step_us: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.step_us)

    @property
    def target(self) -> float:
        return 3.0 * self.running + 20.0


def target_line(timing: Timing) -> str:
    """One row of the table."""
    low, high = min(timing.step_us), max(timing.step_us)
    verdict = "yes" if timing.median <= timing.target else "NO"
    return (
        f"{timing.case:8}{timing.running:8d}{timing.waiting:9d}{timing.median:10.1f}{low:9.1f}{high:9.1f}"
        f"{timing.median / timing.running:9.2f}{timing.target:9.0f}  {verdict}"
    )


def measure(case: str, running: int, waiting: int, repeats: int, steps: int) -> Timing:
    """Time ``steps`` steps, ``repeats`` times over, on one scheduler in its steady state."""
    scheduler = _full_scheduler(case, running, waiting, repeats * steps)
    tokens = PlaceholderTokens()
    step_us = []
    for _ in range(repeats):
        spent = 0
        for _ in range(steps):
            began = time.thread_time_ns()
            batch = scheduler.schedule()
            scheduled = time.thread_time_ns()
            token_ids = tokens.next_tokens(batch)
            computed = time.thread_time_ns()
            finished = scheduler.update(batch, token_ids)
            spent += time.thread_time_ns() - computed + scheduled - began
            for seq in finished:
                scheduler.add(_sequence(f"{seq.request_id}+", _max_tokens(case)))
        step_us.append(spent / steps / 1e3)
    assert scheduler.preemptions == 0
    return Timing(case, running, waiting, step_us)


def _full_scheduler(case: str, running: int, waiting: int, steps: int) -> Scheduler:
    """All seats taken and decoding, ``waiting`` requests in line (one more seat than requests where KV is short)."""
    seats = running + (case in ("kv", "prefix"))
    budget = max(seats, 8192)
    prefix = PREFIX_TOKENS if case == "prefix" else 0
    # none runs out of blocks in so many steps
    blocks = running * ((PROMPT_TOKENS + steps) // BLOCK_SIZE + 2) + prefix // BLOCK_SIZE
    config = EngineConfig(max_num_seqs=seats, max_num_batched_tokens=budget, watermark=0.0)
    scheduler = Scheduler(config, blocks, BLOCK_SIZE, max_model_len=1 << 22)
    for index in range(running):
        scheduler.add(_sequence(f"running {index}", _max_tokens(case), index, PROMPT_TOKENS + prefix * (index == 0)))
    tokens = PlaceholderTokens()
    while scheduler.num_waiting or any(seq.num_uncomputed_tokens > 1 for seq in scheduler.running):
        batch = scheduler.schedule()
        scheduler.update(batch, tokens.next_tokens(batch))
    for index in range(waiting):
        size = blocks * BLOCK_SIZE - 64 if seats > running and index == 0 else PROMPT_TOKENS
        scheduler.add(_sequence(f"waiting {index}", 32, index, size))
    return scheduler


def _max_tokens(case: str) -> int:
    return 32 if case == "churn" else 1 << 20


def _sequence(request_id: str, max_tokens: int, salt: int = 0, prompt_tokens: int = PROMPT_TOKENS) -> Sequence:
    prompt = [1 + (salt + position) % 50_000 for position in range(prompt_tokens)]
    return Sequence.from_request(Request(request_id, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens)))


def growth(timings: list[Timing]) -> tuple[float, float]:
    """Least-squares microseconds a step and per running sequence of the *decode* case."""
    points = [(t.running, t.median) for t in timings if t.case == "decode"]
    running, medians = np.array(points).T
    slope, intercept = np.polyfit(running, medians, 1)
    return float(intercept), float(slope)


def plot(timings: list[Timing], path: Path) -> None:
    """Medians and spread against the number of running sequences, with the target."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 4))).subplots()
    for case in CASES:
        for waiting in WAITING:
            rows = [t for t in timings if (t.case, t.waiting) == (case, waiting)]
            if rows:
                spread = [[t.median - min(t.step_us) for t in rows], [max(t.step_us) - t.median for t in rows]]
                label = f"{case}, {waiting} waiting"
                axes.errorbar([t.running for t in rows], [t.median for t in rows], spread, marker="o", label=label)
    axes.plot(RUNNING, [3.0 * n + 20.0 for n in RUNNING], "k--", label="target: 3 us a sequence + 20 us")
    axes.set(xlabel="running sequences", ylabel="schedule + update, us a step")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", type=Path, help="write a growth plot to this path")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {platform.machine()}, block size {BLOCK_SIZE}, prefix cache on")
    print(f"{options.repeats} repeats of {options.steps} steps; median, minimum and maximum over the repeats")
    print("case     running  waiting   us/step      min      max   us/seq   target  met")
    timings = []
    for case in CASES:
        for running in RUNNING:
            for waiting in WAITING:
                if waiting or case == "decode":
                    timings.append(measure(case, running, waiting, options.repeats, options.steps))
                    print(target_line(timings[-1]), flush=True)
    intercept, slope = growth(timings)
    print(f"decode grows as {intercept:.1f} us a step + {slope:.2f} us per running sequence")
    if options.plot:
        plot(timings, options.plot)


if __name__ == "__main__":
    main()
