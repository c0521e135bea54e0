"""Decode steps in CUDA graphs: a step's hundreds of launches become one.

A graph reads and writes fixed addresses and has a fixed number of rows, so graphs are captured for some numbers of rows
(the *buckets*) over one set of static buffers; a step is copied into the next larger bucket. The rows that fill it up are
*padding rows*: slot -1, so that they write no key, and context 0, so that they read none. The largest bucket is the
largest batch there can be: every decode batch runs in a graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import DecodeBuffers
from engine.model_input import ModelInput
from engine.transfer import ALIGNMENT, to_device

PADDING_SLOT = -1


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Row counts to capture: 1, 2, 4, 8, then steps of 8 to 64, of 16 to 256, of 64 beyond; ``max_num_seqs`` is the last.

    A batch of more than 4 rows is never padded to twice its size.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 64)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def bucket_of(rows: int, sizes: tuple[int, ...]) -> int:
    """The smallest of ``sizes`` (ascending) that holds ``rows``."""
    assert 1 <= rows <= sizes[-1], (rows, sizes)
    return sizes[bisect_left(sizes, rows)]


def is_decode_step(step: ModelInput) -> bool:
    """Whether every sequence of ``step`` has exactly one new token."""
    return len(step.token_ids) == len(step.context_lens) > 0


def pad_decodes(step: ModelInput, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A decode step filled up to ``rows``: int32 [4, rows] of token ids, positions, slots and contexts, and block tables
    int32 [rows, W] without negative entries."""
    used, width = step.block_tables.shape
    padded = np.zeros((4, rows), dtype=np.int32)
    padded[2] = PADDING_SLOT
    for row, values in zip(padded, (step.token_ids, step.positions, step.slot_mapping, step.context_lens), strict=True):
        row[:used] = values
    tables = np.zeros((rows, width), dtype=np.int32)
    np.maximum(step.block_tables, 0, out=tables[:used])
    return padded, tables


class DecodeGraphs:
    """Captured decode steps of every bucket.

    On a CPU nothing can be captured: the same function runs on the same static buffers, so that all but the capture itself
    is tested there.

    Args:
        max_num_seqs: rows of the largest bucket.
        table_width: blocks of the longest sequence.
        vocab_size: columns of the logits.
        device: where the buffers lie.
    """

    def __init__(self, max_num_seqs: int, table_width: int, vocab_size: int, device: torch.device) -> None:
        self.sizes = bucket_sizes(max_num_seqs)
        self.device = device
        stride = -(-max_num_seqs // ALIGNMENT) * ALIGNMENT
        self._rows = torch.zeros((4, stride), dtype=torch.int32, device=device)[:, :max_num_seqs]
        self._rows[2] = PADDING_SLOT
        self._tables = torch.zeros((max_num_seqs, table_width), dtype=torch.int32, device=device)
        self._logits = torch.empty((max_num_seqs, vocab_size), dtype=torch.float32, device=device)
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, decode: Callable[[DecodeBuffers], Tensor]) -> None:
        """Capture ``decode``, from static buffers to logits [rows, vocab], for every bucket, the largest first: the smaller
        ones find room in its memory."""
        pool = None
        for rows in reversed(self.sizes):
            token_ids, positions, slots, lengths = self._rows[:, :rows].unbind(0)
            buffers = DecodeBuffers(token_ids, positions, slots, lengths, self._tables[:rows])
            out = self._logits[:rows]

            def run(buffers: DecodeBuffers = buffers, out: Tensor = out) -> None:
                out.copy_(decode(buffers))

            if self.device.type == "cpu":
                self._replays[rows] = run
                continue
            run()  # what is compiled or tuned at the first call must be done before the capture
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                run()
            pool = pool or graph.pool()
            self._replays[rows] = graph.replay

    def takes(self, step: ModelInput) -> bool:
        """Whether ``step`` can run in a graph."""
        return is_decode_step(step) and len(step.token_ids) <= self.sizes[-1]

    def replay(self, step: ModelInput) -> Tensor:
        """float32 logits [R, vocab] of ``step.logit_rows``, good until the next call; the device need not have finished."""
        count = len(step.token_ids)
        rows = bucket_of(count, self.sizes)
        padded, tables = pad_decodes(step, rows)
        wants_all = len(step.logit_rows) == count
        if wants_all:
            values, blocks = to_device((padded, tables), self.device)
        else:
            values, blocks, wanted = to_device((padded, tables, step.logit_rows), self.device)
        self._rows[:, :rows].copy_(values)
        self._tables[:rows, : tables.shape[1]].copy_(blocks)
        self._replays[rows]()
        return self._logits[:count] if wants_all else self._logits.index_select(0, wanted)
