"""What int8 weights cost and gain: logits against the fp32 torch path, and step times beside bf16, in one run.

    python -m benchmarks.quantization [--model M] [--tokens 2000] [--threads 1] [--repeats 15]

Loss: the repository's own documents as text in pieces of 250 tokens, logits of every position (teacher-forced). Text has
far more near ties than what the model says itself, so agreement is lower here than on its own output. Speed: decode steps
at context 256; the two paths take turns.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kernels import BLOCK, step
from engine.model_runner import ModelRunner
from engine.native import NativeRunner
from engine.tokenizer import Tokenizer
from engine.weights.checkpoint import load_checkpoint

PIECE = 250
BATCHES = (1, 4, 8, 16, 32)
CONTEXT = 256


def text_pieces(tokenizer: Tokenizer, tokens: int) -> list[list[int]]:
    root = Path(__file__).parents[1]
    ids = [
        i
        for file in [root / "README.md", *sorted((root / "docs").glob("*.md"))]
        for i in tokenizer.encode(file.read_text())
    ]
    return [ids[at : at + PIECE] for at in range(0, min(tokens, len(ids) - PIECE), PIECE)]


def all_logits(runner: Any, token_ids: list[int], vocab: int) -> np.ndarray:
    """Logits of every position of one sequence, float32 [tokens, vocab]."""
    rows = np.arange(len(token_ids), dtype=np.int32)
    prompt = step(1, len(token_ids), 0, vocab)
    fields = {name: getattr(prompt, name) for name in prompt.__slots__}
    return runner.forward(
        type(prompt)(**fields | {"token_ids": np.array(token_ids, np.int32), "logit_rows": rows})
    ).copy()


def loss(runners: dict[str, Any], reference: Any, pieces: list[list[int]], vocab: int) -> None:
    """Print argmax agreement, mean and largest |difference of logits|, and KL of the reference to each runner."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in runners}
    for piece in pieces:
        expected = torch.from_numpy(all_logits(reference, piece, vocab))
        for name, runner in runners.items():
            got = torch.from_numpy(all_logits(runner, piece, vocab))
            same = (got.argmax(1) == expected.argmax(1)).float().mean()
            log_p, log_q = expected.log_softmax(1), got.log_softmax(1)
            divergence = (log_p.exp() * (log_p - log_q)).sum(1).mean()
            difference = (got - expected).abs()
            found[name].append((float(same), float(difference.mean()), float(difference.max()), float(divergence)))
    print(f"loss against fp32, {sum(map(len, pieces))} positions of text")
    for name, rows in found.items():
        same, mean, _, divergence = np.mean(rows, axis=0)
        top = np.max(rows, axis=0)[2]
        print(f"  {name:<5} argmax equal {same:.2%}  mean |d| {mean:.3f}  max |d| {top:.2f}  KL {divergence:.2e} nats")


def speed(runners: dict[str, Any], vocab: int, repeats: int) -> None:
    """Print the median decode step of each runner and the ratio to the first."""
    print(f"decode step at context {CONTEXT}, medians of {repeats}")
    for batch in BATCHES:
        times: dict[str, list[float]] = {name: [] for name in runners}
        for runner in runners.values():
            runner.forward(step(batch, CONTEXT, 0, vocab))
        decode = step(batch, 1, CONTEXT, vocab)
        for _ in range(repeats):
            for name, runner in runners.items():
                started = time.perf_counter()
                runner.forward(decode)
                times[name].append(time.perf_counter() - started)
        first = np.median(next(iter(times.values())))
        columns = [f"{name} {np.median(t) * 1e3:.2f} ms (x{first / np.median(t):.2f})" for name, t in times.items()]
        print(f"  {batch:>2} sequences  " + "  ".join(columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model)
    vocab = checkpoint.config.vocab_size
    sizes = {"num_kv_blocks": max(BATCHES) * (CONTEXT // BLOCK + 1), "max_model_len": CONTEXT + BLOCK}
    runners = {
        name: NativeRunner(checkpoint, quantization=kind, num_threads=options.threads, keep_packed=True, **sizes)
        for name, kind in (("bf16", "none"), ("int8", "int8"))
    }
    print(f"{options.model}, {options.threads} thread(s), {runners['int8'].instructions}")
    torch.set_num_threads(options.threads)
    reference = ModelRunner(checkpoint, block_size=BLOCK, **sizes)
    loss(runners, reference, text_pieces(Tokenizer.from_model(options.model), options.tokens), vocab)
    speed(runners, vocab, options.repeats)


if __name__ == "__main__":
    main()
