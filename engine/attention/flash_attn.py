"""Attention by the flash-attn package (Dao 2023): one varlen call for steps with prompts, the split-KV call for decodes.

Its paged calls want blocks of a multiple of 256 tokens, which ``block_size: auto`` honours. New keys and values are written
by our own kernel, which can skip the padding rows of a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionMetadata, DecodeBuffers, write_cache
from engine.model_input import ModelInput
from engine.transfer import to_device


@dataclass(frozen=True)
class FlashMetadata(AttentionMetadata):
    """``slot_mapping`` int32 [T] (negative: write nowhere), and of the step's S sequences:

    Attributes:
        context_lens: int32 [S].
        block_tables: int32 [S, W], 0 where there is no block.
        block_size: tokens to a block.
        query_start, context_start: int32 [S + 1], running sums of new and of all tokens; not used when every sequence has
            one new token.
        longest_query, longest_context: their largest; 0 and 0 when every sequence has one new token.
    """

    context_lens: Tensor
    block_tables: Tensor
    block_size: int
    query_start: Tensor | None = None
    context_start: Tensor | None = None
    longest_query: int = 0
    longest_context: int = 0


class FlashAttention(AttentionBackend[FlashMetadata]):
    """flash-attn 2 on paged blocks; half precision only."""

    name: ClassVar[str] = "flash_attn"
    default_block_size: ClassVar[int] = 256
    block_multiple: ClassVar[int] = 256
    head_sizes: ClassVar[frozenset[int]] = frozenset(range(8, 257, 8))
    dtypes: ClassVar[frozenset[str]] = frozenset(("bfloat16", "float16"))
    captures_decodes: ClassVar[bool] = True

    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> FlashMetadata:
        counts = np.diff(step.query_start)
        tables = np.maximum(step.block_tables, 0)
        if bool((counts == 1).all()):
            slots, lengths, blocks = to_device((step.slot_mapping, step.context_lens, tables), device)
            return FlashMetadata(slots, lengths, blocks, block_size)
        context_start = np.concatenate(([0], np.cumsum(step.context_lens))).astype(np.int32)
        slots, lengths, blocks, starts, contexts = to_device(
            (step.slot_mapping, step.context_lens, tables, step.query_start, context_start), device
        )
        longest = int(counts.max()), int(step.context_lens.max())
        return FlashMetadata(slots, lengths, blocks, block_size, starts, contexts, *longest)

    def prepare_decodes(self, buffers: DecodeBuffers, block_size: int) -> FlashMetadata:
        return FlashMetadata(buffers.slot_mapping, buffers.context_lens, buffers.block_tables, block_size)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, metadata: FlashMetadata) -> Tensor:
        _write(key, value, cache, metadata.slot_mapping)
        _, slots, kv_heads, head_dim = cache.shape
        size = metadata.block_size
        keys, values = cache.view(2, slots // size, size, kv_heads, head_dim).unbind(0)
        out: Tensor
        if metadata.query_start is None:
            out = flash_attn_with_kvcache(
                query.unsqueeze(1), keys, values, cache_seqlens=metadata.context_lens,
                block_table=metadata.block_tables, softmax_scale=head_dim**-0.5, causal=True,
            )  # fmt: skip
            return out.squeeze(1)
        out = flash_attn_varlen_func(
            query, keys, values, cu_seqlens_q=metadata.query_start, cu_seqlens_k=metadata.context_start,
            max_seqlen_q=metadata.longest_query, max_seqlen_k=metadata.longest_context, softmax_scale=head_dim**-0.5,
            causal=True, block_table=metadata.block_tables,
        )  # fmt: skip
        return out


def _write(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    if cache.is_cuda:
        from engine.attention.triton import write

        write(key, value, cache, slots)
    else:  # a stand-in for the package in tests
        written = slots >= 0
        write_cache(cache, key[written], value[written], slots[written].long())
