"""Step times of the native CPU path beside the torch path, in one run: decode at several batch sizes, and prefill.

    python benchmarks/kernels.py [--model M] [--threads N] [--batches 1,4,8,16,32] [--context 256] [--repeats 15]

Under each size stand the native step's phases: milliseconds, the bytes they read and the products they compute
against what the machine reads and multiplies in this same run (numpy's sum over 256 MiB, torch's bf16 product of two
2048 x 2048 matrices), and the larger of the two shares: how close the phase comes to its roofline.

The two paths take turns within every repeat, so that a disturbance hits both. ``--cpu-time`` counts the process's
processor time instead of the clock's (one thread only): what a busy machine cannot distort by waiting.
"""

from __future__ import annotations

import argparse
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.model_input import ModelInput
from engine.model_runner import ModelRunner
from engine.models.config import ModelConfig
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


def read_rate(threads: int) -> float:
    """Bytes/s that ``threads`` threads read from memory, each its own 256 MiB; the median of nine goes."""
    arrays = [np.ones(1 << 26, dtype=np.float32) for _ in range(threads)]
    rates = []
    for _ in range(9):
        workers = [threading.Thread(target=array.sum) for array in arrays]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(sum(array.nbytes for array in arrays) / (time.perf_counter() - start))
    return float(np.median(rates))


def product_rate() -> float:
    """Operations/s (a multiply and an add are two) of torch's bf16 matrix product; the median of nine goes."""
    left, right = torch.ones(2, 2048, 2048, dtype=torch.bfloat16)
    rates = []
    for _ in range(9):
        start = time.perf_counter()
        left @ right
        rates.append(2 * 2048**3 / (time.perf_counter() - start))
    return float(np.median(rates))


def work(config: ModelConfig, model_input: ModelInput) -> dict[str, tuple[float, float]]:
    """Bytes to read and operations of each phase in bf16; the last layer's rows without logits are counted too."""
    rows, logit_rows = len(model_input.token_ids), len(model_input.logit_rows)
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    matrices = {"qkv": hidden * (queries + 2 * keys), "out": hidden * queries}
    matrices |= {"gate and up": 2 * hidden * inner, "down": hidden * inner}
    found = {name: (2.0 * layers * size, 2.0 * layers * size * rows) for name, size in matrices.items()}
    found["lm_head"] = (2.0 * config.vocab_size * hidden, 2.0 * config.vocab_size * hidden * logit_rows)
    context = float(model_input.context_lens.sum())
    visible = float((model_input.positions + 1).sum())
    found["attention"] = (4.0 * layers * keys * context, 4.0 * layers * queries * visible)
    return found


def show_phases(runner: NativeRunner, model_input: ModelInput, repeats: int, reads: float, products: float) -> None:
    """Print the median time of each phase of ``runner``, and how much of it the roofline explains."""
    every = []
    for _ in range(repeats):
        runner.forward(model_input)
        every.append(runner.phase_seconds())
    needed = work(runner.config, model_input)
    for name in every[0]:
        seconds = float(np.median([phases[name] for phases in every]))
        line = f"    {name:<14} {seconds * 1e3:8.2f} ms"
        if name in needed and seconds > 0:
            size, operations = needed[name]
            share = max(size / reads, operations / products) / seconds
            bound = "memory" if size / reads > operations / products else "compute"
            line += f"  {size / seconds / 1e9:6.1f} GB/s {operations / seconds / 1e9:7.0f} GFLOP/s"
            line += f"  {share:4.0%} of the roofline ({bound})"
        print(line)


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
    reads, products = read_rate(threads), product_rate()
    print(f"this machine, now: reads {reads / 1e9:.1f} GB/s, multiplies bf16 at {products / 1e9:.0f} GFLOP/s")
    clock = time.process_time if options.cpu_time else time.perf_counter
    vocab = checkpoint.config.vocab_size
    for size in batches:
        print(f"decode, {size} sequences, context {options.context}, {options.repeats} repeats")
        prompt = step(size, options.context + 1, 0, vocab)
        for runner in runners.values():
            runner.forward(prompt)
        decode = step(size, 1, options.context, vocab)
        measure(runners, decode, options.repeats, clock)
        show_phases(runners["native bf16"], decode, options.repeats, reads, products)
    for size in prefills:
        print(f"prefill, {size} tokens, {max(3, options.repeats // 4)} repeats")
        measure(runners, step(1, size, 0, vocab), max(3, options.repeats // 4), clock)
        show_phases(runners["native bf16"], step(1, size, 0, vocab), max(3, options.repeats // 4), reads, products)


if __name__ == "__main__":
    main()
