"""How steady the native step is: alone on a pinned core, and on two cores beside a neighbour.

    python -m benchmarks.steadiness [--model M] [--batch 8] [--steps 2000] [--neighbour-steps 1000]

* alone: one thread on the first core, decode steps whose context grows; p50 and p99 of the times less their linear trend.
* neighbour: two threads on two cores; a process on the second core that computes a quarter of the time (2.5 ms in every
  10). Blocks of steps with and without it take turns; ratios of p50 and p99 of all steps.

What is asked for: alone p99 / p50 <= 1.10; beside the neighbour p50 <= 1.35 x and p99 <= 2 x.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels import BLOCK, step
from engine.native import NativeRunner
from engine.weights.checkpoint import Checkpoint, load_checkpoint

CONTEXT = 256
PERIOD_S, SHARE = 0.010, 0.25
BLOCKS = 10


def decode_times(runner: NativeRunner, batch: int, steps: int, vocab: int) -> NDArray[np.float64]:
    """Seconds of ``steps`` steps, the context growing by a token each, from ``CONTEXT`` on and anew at the model's limit."""
    span = runner.max_model_len - CONTEXT - 1
    inputs = [step(batch, 1, CONTEXT + i, vocab) for i in range(min(steps, span))]
    for model_input in inputs[:20]:
        runner.forward(model_input)
    times = np.empty(steps)
    for i in range(steps):
        start = time.perf_counter()
        runner.forward(inputs[i % span])
        times[i] = time.perf_counter() - start
    return times


def without_trend(times: NDArray[np.float64], span: int) -> NDArray[np.float64]:
    """Times less the line through them over the context, at the mean context."""
    context = np.arange(len(times)) % span
    slope = np.polyfit(context, times, 1)[0]
    return times - slope * (context - context.mean())


def show(name: str, times: NDArray[np.float64]) -> tuple[float, float]:
    p50, p99, top = np.percentile(times, [50, 99, 100])
    print(f"  {name:<18} p50 {p50 * 1e3:7.2f}  p99 {p99 * 1e3:7.2f}  max {top * 1e3:7.2f} ms  p99/p50 {p99 / p50:.3f}")
    return float(p50), float(p99)


def _compute_a_share(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        start = time.perf_counter()
        while time.perf_counter() - start < SHARE * PERIOD_S:
            pass
        time.sleep(max(0.0, start + PERIOD_S - time.perf_counter()))


@contextmanager
def neighbour(core: int) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_compute_a_share, args=(core,), daemon=True)
    process.start()
    time.sleep(1.0)  # until it computes
    try:
        yield
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--neighbour-steps", type=int, default=1000)
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model)
    vocab = checkpoint.config.vocab_size
    cores = sorted(os.sched_getaffinity(0))
    longest = CONTEXT + 513
    sizes: dict[str, Any] = {"num_kv_blocks": options.batch * (longest // BLOCK + 1), "max_model_len": longest}

    os.sched_setaffinity(0, {cores[0]})
    runner = NativeRunner(checkpoint, num_threads=1, keep_packed=True, **sizes)
    print(f"{options.model}, {options.batch} sequences, context {CONTEXT} to {longest}, {runner.instructions}")
    print(f"alone, one thread on core {cores[0]}, {options.steps} steps, trend removed")
    show("alone", without_trend(decode_times(runner, options.batch, options.steps, vocab), longest - CONTEXT - 1))
    runner.close()
    os.sched_setaffinity(0, cores)
    if len(cores) > 1:
        beside_a_neighbour(checkpoint, options, cores, sizes)


def beside_a_neighbour(
    checkpoint: Checkpoint, options: argparse.Namespace, cores: list[int], sizes: dict[str, Any]
) -> None:
    runner = NativeRunner(checkpoint, num_threads=2, keep_packed=True, **sizes)
    print(f"two threads, {options.neighbour_steps} steps each; the neighbour computes {SHARE:.0%} of core {cores[1]}")
    alone, beside = [], []
    each = options.neighbour_steps // BLOCKS
    for _ in range(BLOCKS):
        alone.append(decode_times(runner, options.batch, each, checkpoint.config.vocab_size))
        with neighbour(cores[1]):
            beside.append(decode_times(runner, options.batch, each, checkpoint.config.vocab_size))
    without, with_it = show("alone", np.concatenate(alone)), show("beside neighbour", np.concatenate(beside))
    print(f"  p50 x{with_it[0] / without[0]:.2f}, p99 x{with_it[1] / without[1]:.2f}")


if __name__ == "__main__":
    main()
