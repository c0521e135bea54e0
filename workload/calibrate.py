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
BACKLOG = 2  # clients per seat in the saturated loop

Lengths = NDArray[np.int64]


def grid_levels(max_num_seqs: int) -> list[int]:
    """Batch sizes 1, 2, 4, ... up to and with the number of seats."""
    return sorted({1 << power for power in range(max_num_seqs.bit_length())} | {max_num_seqs})


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
    """Batches that span what the workload's steps will look like: batch size x context, and prompt chunks alone.

    Args:
        prompt_tokens, output_tokens: lengths of the workload. Contexts are deciles 1 and 5 of the prompts and 95 % of
            prompt and output together, so that hardly a step of a run lies outside the grid.
        max_prompt: the longest prompt the target takes.
        source: where the prompts' tokens come from.
        rounds: how often the whole grid is run; its order alternates, so that a drift does not look like an effect.
    """
    levels = [
        *np.quantile(prompt_tokens, [0.1, 0.5], method="inverted_cdf"),
        np.quantile(prompt_tokens + output_tokens, 0.95, method="inverted_cdf"),
    ]
    contexts = sorted({min(int(length), max_prompt) for length in levels})
    chunk = min(max_num_batched_tokens, max_prompt)
    chunks = sorted({1, 4, 16, 64, chunk} & set(range(1, chunk + 1)))
    cells = [(size, context) for size in grid_levels(max_num_seqs) for context in contexts]
    cells += [(1, length) for length in chunks]
    order = [cell for turn in range(rounds) for cell in (cells if turn % 2 == 0 else cells[::-1])]
    batches: list[list[Request]] = []
    number = 0
    for size, context in order:
        batch = []
        for _ in range(size):
            prompt = source.tokens(0, number, context).tolist()
            batch.append(
                Request(f"grid-{number}", prompt, SamplingParams(0.0, max_tokens=DECODE_STEPS, ignore_eos=True))
            )
            number += 1
        batches.append(batch)
    return BatchLoop(batches)


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
