"""What a target can do: a designed grid of steps, and a loop that never lets it run empty.

Both are runs like any other and are recorded the same way. The grid shows how a step's time depends on its batch; the
saturated loop completes requests at the capacity of this mix of requests on this configuration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams
from engine.sequence import Request
from workload.loops import BatchLoop, ClosedLoop, RequestList
from workload.prompts import TokenSource

DECODE_STEPS = 8  # output tokens of a grid request
CHUNK_STEPS = 2  # and of one whose prompt is what counts
PAUSES_S = (0.05, 0.15, 0.5)  # before chunks: an engine that was idle is slower, the more so the longer it was
BACKLOG = 2  # clients per seat in the saturated loop

Lengths = NDArray[np.int64]


def grid_levels(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two and the sizes half-way between, up to and with ``most``."""
    doubled = {size << power for power in range(most.bit_length()) for size in (1, 3)}
    return sorted({size for size in doubled if size < most} | {most})


def step_grid(
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_prompt: int,
    source: TokenSource,
    rounds: int = 2,
) -> BatchLoop:
    """Batches that span what the workload's steps will look like: batch size x context, and prompt chunks alone after pauses.

    Args:
        prompt_tokens, output_tokens: lengths of the workload. The middle context is the median prompt, tried with every batch
            size; the others are decile 1 of the prompts and 95 % of prompt and output together, so that hardly a step of a
            run lies outside the grid, tried with one request and with a middle number of them.
        max_prompt: the longest prompt the target takes.
        source: where the prompts' tokens come from.
        rounds: how often the whole grid is run; its order alternates, so that a drift does not look like an effect.
    """
    middle = int(np.quantile(prompt_tokens, 0.5, method="inverted_cdf"))
    short = int(np.quantile(prompt_tokens, 0.1, method="inverted_cdf"))
    long = int(np.quantile(prompt_tokens + output_tokens, 0.95, method="inverted_cdf"))
    sizes = grid_levels(max_num_seqs)
    chunk = min(max_num_batched_tokens, max_prompt)
    cells = [(size, min(middle, max_prompt), DECODE_STEPS, 0.0) for size in sizes]
    outer = sorted({1, sizes[len(sizes) // 2]})
    cells += [
        (size, min(length, max_prompt), DECODE_STEPS, 0.0)
        for length in sorted({short, long} - {middle})
        for size in outer
    ]
    chunks = enumerate(grid_levels(chunk))
    cells += [(1, length, CHUNK_STEPS, PAUSES_S[index % len(PAUSES_S)]) for index, length in chunks]
    order = [cell for turn in range(rounds) for cell in (cells if turn % 2 == 0 else cells[::-1])]
    batches: list[list[Request]] = []
    number = 0
    for size, context, steps, _ in order:
        batch = []
        for _ in range(size):
            prompt = source.tokens(0, number, context).tolist()
            batch.append(Request(f"grid-{number}", prompt, SamplingParams(0.0, max_tokens=steps, ignore_eos=True)))
            number += 1
        batches.append(batch)
    return BatchLoop(batches, [pause_s for _, _, _, pause_s in order])


def saturated_loop(requests: RequestList, max_num_seqs: int) -> ClosedLoop:
    """``BACKLOG`` clients a seat, no thinking: somebody always waits."""
    return ClosedLoop(BACKLOG * max_num_seqs, requests)


def warm_up_requests(source: TokenSource, sizes: Sequence[int]) -> BatchLoop:
    """A few untimed requests that make the engine touch its pages and shapes before anything counts."""
    batches = []
    for number, size in enumerate(sizes):
        prompt = source.tokens(1, number, size).tolist()
        batches.append([Request(f"warm-{number}", prompt, SamplingParams(0.0, max_tokens=4, ignore_eos=True))])
    return BatchLoop(batches)
