"""How many KV blocks fit on a GPU: run the largest step there can be and see what memory it leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.model_input import ModelInput
from engine.model_runner import ModelRunner


def largest_step(max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, block_size: int) -> ModelInput:
    """A step that spends the whole budget on the prompts of as many sequences as there are seats, each row with logits
    that may have them; blocks are numbered from 0 on."""
    seqs = min(max_num_seqs, max_num_batched_tokens)
    counts = np.full(seqs, max_num_batched_tokens // seqs)
    counts[: max_num_batched_tokens % seqs] += 1
    counts = np.minimum(counts, max_model_len)
    starts = np.concatenate(([0], np.cumsum(counts)))
    blocks = -(-counts // block_size)
    first = np.concatenate(([0], np.cumsum(blocks)[:-1]))
    tables = np.full((seqs, blocks.max()), -1)
    for seq in range(seqs):
        tables[seq, : blocks[seq]] = first[seq] + np.arange(blocks[seq])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    slots = np.repeat(first, counts) * block_size + positions
    arrays = (np.zeros(starts[-1]), positions, starts, counts, tables, slots, starts[1:] - 1)
    return ModelInput(*(array.astype(np.int32) for array in arrays))


def blocks_that_fit(total: int, used: int, peak_growth: int, utilization: float, block_bytes: int) -> int:
    """KV blocks for a share ``utilization`` of ``total`` bytes, of which ``used`` are taken now (by anybody) and
    ``peak_growth`` more during the largest step.

    Raises:
        ValueError: there is no room for one; the message has the figures and what may be changed.
    """
    room = int(total * utilization) - used - peak_growth
    if room < block_bytes:
        gib = 2.0**30
        raise ValueError(
            f"no room for a KV block: of {total / gib:.1f} GiB, gpu_memory_utilization {utilization} allows "
            f"{total * utilization / gib:.1f}, and {used / gib:.1f} are taken and {peak_growth / gib:.1f} more in the "
            "largest step; raise gpu_memory_utilization, lower max_num_batched_tokens, or take a smaller model"
        )
    return room // block_bytes


def fitting_kv_blocks(
    runner: ModelRunner,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    utilization: float,
    sample: Callable[[Tensor], object],
) -> int:
    """KV blocks for ``runner``, whose cache is not made yet, after a warm-up with the largest step and ``sample`` on its
    logits.

    Raises:
        ValueError: as ``blocks_that_fit``.
    """
    device = runner.device
    step = largest_step(max_num_seqs, max_num_batched_tokens, runner.max_model_len, runner.block_size)
    layers, *shape = runner.cache_shape(int(step.block_tables.max()) + 1)
    with torch.inference_mode():
        # One layer's memory stands for all layers.
        runner.cache = torch.zeros(shape, dtype=runner.dtype, device=device).expand(layers, *shape)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_stats(device)["allocated_bytes.all.current"]
        sample(runner.logits(step))
        torch.cuda.synchronize(device)
        peak = torch.cuda.memory_stats(device)["allocated_bytes.all.peak"]
        del runner.cache
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
    one_block = int(np.prod(runner.cache_shape(1))) * runner.dtype.itemsize
    return blocks_that_fit(total, total - free, peak - before, utilization, one_block)
