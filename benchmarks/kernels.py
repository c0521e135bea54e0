"""Step times of the native CPU path beside the torch path, in one run: decode at several batch sizes, and prefill.

    python benchmarks/kernels.py [--model M] [--threads N] [--batches 1,4,8,16,32] [--context 256] [--repeats 15]

The two paths take turns within every repeat, so that a disturbance hits both. ``--cpu-time`` counts the process's
processor time instead of the clock's (one thread only): what a busy machine cannot distort by waiting.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.model_input import ModelInput
from engine.model_runner import ModelRunner
from engine.native import NativeRunner
from engine.weights.checkpoint import load_checkpoint

BLOCK = 16


def step(seqs: int, new_tokens: int, computed: int, vocab: int) -> ModelInput:
    """``seqs`` sequences with ``computed`` tokens in the cache that each add ``new_tokens`` and want one logit row."""
    blocks = -(-(computed + new_tokens) // BLOCK)
    tables = np.arange(seqs * blocks, dtype=np.int32).reshape(seqs, blocks)
    positions = np.tile(np.arange(computed, computed + new_tokens, dtype=np.int32), seqs)
    owner = np.repeat(np.arange(seqs), new_tokens)
    return ModelInput(
        token_ids=np.random.default_rng(0).integers(0, vocab, seqs * new_tokens, dtype=np.int32),
        positions=positions,
        query_start=np.arange(seqs + 1, dtype=np.int32) * new_tokens,
        context_lens=np.full(seqs, computed + new_tokens, dtype=np.int32),
        block_tables=tables,
        slot_mapping=tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK,
        logit_rows=np.arange(1, seqs + 1, dtype=np.int32) * new_tokens - 1,
    )


def measure(runners: dict[str, Any], model_input: ModelInput, repeats: int, clock: Callable[[], float]) -> None:
    """Print the fastest, median and slowest step of every runner, and the ratio of the fastest to the first's."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeats):
        for name, runner in runners.items():
            start = clock()
            runner.forward(model_input)
            times[name].append(clock() - start)
    rows = len(model_input.token_ids)
    first = min(next(iter(times.values())))
    for name, found in times.items():
        ms = np.array(found) * 1e3
        print(
            f"  {name:<14} min {ms.min():8.2f}  median {np.median(ms):8.2f}  max {ms.max():8.2f} ms"
            f"  {rows / ms.min() * 1e3:7.0f} tok/s  x{ms.min() / 1e3 / first:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batches", default="1,4,8,16,32")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--prefill", default="128,512")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    batches = [int(size) for size in options.batches.split(",")]
    prefills = [int(size) for size in options.prefill.split(",")]
    torch.set_num_threads(options.threads)
    checkpoint = load_checkpoint(options.model)
    longest = max(options.context + 1, *prefills)
    sizes = {"num_kv_blocks": max(batches) * (-(-longest // BLOCK) + 1), "max_model_len": longest}
    threads = options.threads
    runners = {
        "native bf16": NativeRunner(checkpoint, num_threads=threads, **sizes),
        "native bf16/kv32": NativeRunner(checkpoint, num_threads=threads, kv_dtype="float32", **sizes),
        "torch fp32": ModelRunner(checkpoint, block_size=BLOCK, attention="sdpa", dtype="float32", **sizes),
        "torch bf16": ModelRunner(checkpoint, block_size=BLOCK, attention="sdpa", dtype="bfloat16", **sizes),
    }
    print(
        f"{options.model}, {threads} thread(s), torch {torch.__version__}, {platform.processor() or platform.machine()}"
    )
    clock = time.process_time if options.cpu_time else time.perf_counter
    vocab = checkpoint.config.vocab_size
    for size in batches:
        print(f"decode, {size} sequences, context {options.context}, {options.repeats} repeats")
        prompt = step(size, options.context + 1, 0, vocab)
        for runner in runners.values():
            runner.forward(prompt)
        measure(runners, step(size, 1, options.context, vocab), options.repeats, clock)
    for size in prefills:
        print(f"prefill, {size} tokens, {max(3, options.repeats // 4)} repeats")
        measure(runners, step(1, size, 0, vocab), max(3, options.repeats // 4), clock)


if __name__ == "__main__":
    main()
