"""Attention as the formula says, for one row at a time: slow, and the same to the last bit whatever the batch.

Floating-point sums depend on their order, and the kernels behind a matrix product choose the order by its shape. So
the promise is kept by never letting a shape depend on the batch: the model runs one row at a time, and here the only
size is the row's own context. Chunks, blocks, neighbours and prefix hits then cannot change anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionMetadata, context_slots, write_cache
from engine.model_input import ModelInput


@dataclass(frozen=True)
class RowMetadata(AttentionMetadata):
    """``context``: int64 [context], the cache rows of the sequence up to and with this row."""

    context: Tensor


class ReferenceAttention(AttentionBackend[RowMetadata]):
    """softmax(q K^T / sqrt(d)) V of a single row, in float32."""

    name: ClassVar[str] = "reference"
    one_row_at_a_time: ClassVar[bool] = True

    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> RowMetadata:
        assert len(step.token_ids) == 1, "the reference takes one row at a time"
        table = torch.from_numpy(step.block_tables[0]).to(device, torch.int64)
        return RowMetadata(
            slot_mapping=torch.from_numpy(step.slot_mapping).to(device, torch.int64),
            context=context_slots(table, int(step.positions[0]) + 1, block_size),
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, metadata: RowMetadata) -> Tensor:
        write_cache(cache, key, value, metadata.slot_mapping)
        _, heads, head_dim = query.shape
        kv_heads = key.shape[1]
        keys = cache[0].index_select(0, metadata.context).float().transpose(0, 1)
        values = cache[1].index_select(0, metadata.context).float().transpose(0, 1)
        grouped = query.float().view(kv_heads, heads // kv_heads, head_dim)
        weights = torch.softmax(grouped @ keys.transpose(1, 2) * head_dim**-0.5, dim=-1)
        return (weights @ values).view(1, heads, head_dim).to(query.dtype)
