"""A scheduled batch as flat arrays, the one input that every model path (torch or native) takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.executors.base import ScheduledBatch

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ModelInput:
    """All new tokens of a step as T rows, sequence after sequence (S sequences, R rows that need logits).

    Attributes:
        token_ids: int32 [T].
        positions: int32 [T], position of each row in its sequence, from 0.
        query_start: int32 [S + 1]; rows ``query_start[i]:query_start[i + 1]`` belong to sequence i.
        context_lens: int32 [S], tokens of sequence i in the cache once this step has written its own.
        block_tables: int32 [S, B], KV block of every ``block_size`` tokens, padded with -1.
        slot_mapping: int32 [T], ``block * block_size + offset`` where a row's key and value go.
        logit_rows: int32 [R], ascending rows whose logits are wanted.
    """

    token_ids: IntArray
    positions: IntArray
    query_start: IntArray
    context_lens: IntArray
    block_tables: IntArray
    slot_mapping: IntArray
    logit_rows: IntArray


def build_model_input(batch: ScheduledBatch, block_size: int) -> ModelInput:
    """Flatten ``batch``: every sequence's next ``num_tokens`` tokens from ``num_computed_tokens`` on."""
    token_ids: list[int] = []
    starts = [0]
    for seq, count in zip(batch.seqs, batch.num_tokens, strict=True):
        begin = seq.num_computed_tokens
        token_ids += seq.token_ids[begin : begin + count]
        starts.append(starts[-1] + count)
    query_start = np.array(starts, dtype=np.int32)
    counts = np.diff(query_start)
    begins = np.array([seq.num_computed_tokens for seq in batch.seqs], dtype=np.int32)
    context_lens = begins + counts
    width = max((len(seq.block_table) for seq in batch.seqs), default=0)
    block_tables = np.full((len(batch.seqs), width), -1, dtype=np.int32)
    for row, seq in zip(block_tables, batch.seqs, strict=True):
        row[: len(seq.block_table)] = seq.block_table
    owner = np.repeat(np.arange(len(batch.seqs), dtype=np.int32), counts)
    positions = np.arange(starts[-1], dtype=np.int32) + (begins - query_start[:-1])[owner]
    slot_mapping = block_tables[owner, positions // block_size] * block_size + positions % block_size
    logit_rows = (query_start[1:] - 1)[np.array(batch.needs_token, dtype=bool)]
    return ModelInput(
        np.array(token_ids, dtype=np.int32),
        positions,
        query_start,
        context_lens.astype(np.int32),
        block_tables,
        slot_mapping.astype(np.int32),
        logit_rows.astype(np.int32),
    )
