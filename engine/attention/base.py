"""The contract of an attention back end: a paged key-value cache and one function that writes and reads it.

Everything about the step comes in one metadata object, made once a step by :meth:`AttentionBackend.prepare` and
passed down explicitly, so that a layer holds no state of the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from engine.model_input import ModelInput


@dataclass(frozen=True)
class AttentionMetadata:
    """What every back end needs of a step.

    Attributes:
        slot_mapping: int64 [T], the cache row where each new key and value goes.
    """

    slot_mapping: Tensor


@dataclass(frozen=True)
class DecodeBuffers:
    """Arrays on the device that a captured decode step reads: one row a sequence, B rows, some of them padding.

    Attributes:
        token_ids, positions: int32 [B].
        slot_mapping: int32 [B]; -1 in a padding row, which must write nowhere.
        context_lens: int32 [B]; 0 in a padding row.
        block_tables: int32 [B, W], W blocks for the longest sequence.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    context_lens: Tensor
    block_tables: Tensor


Metadata = TypeVar("Metadata", bound=AttentionMetadata)


class AttentionBackend(ABC, Generic[Metadata]):
    """Causal attention over a paged cache, with several query heads to a key-value head.

    Attributes:
        name: what ``EngineConfig.attention`` calls it.
        default_block_size: what ``block_size: auto`` picks.
        block_multiple: block sizes must be a multiple of this.
        head_sizes: supported ``head_dim``; ``None`` means any.
        dtypes: supported number formats; ``None`` means any.
        one_row_at_a_time: the model must be run on each row alone, rows of a sequence in order. A back end that sets
            it promises bitwise the same result whatever runs beside a request.
        captures_decodes: a step of decodes can be captured in a CUDA graph (``prepare_decodes``).

    Args:
        group: query heads to a key-value head of the model it will serve.
    """

    name: ClassVar[str]
    default_block_size: ClassVar[int] = 16
    block_multiple: ClassVar[int] = 1
    head_sizes: ClassVar[frozenset[int] | range | None] = None
    dtypes: ClassVar[frozenset[str] | None] = None
    one_row_at_a_time: ClassVar[bool] = False
    captures_decodes: ClassVar[bool] = False

    def __init__(self, group: int = 1) -> None:
        self.group = group

    @classmethod
    def check(cls, block_size: int, head_dim: int, dtype: str | None = None) -> None:
        """Raise ValueError, with what is supported, for a block or head size or number format that this back end cannot
        take."""
        if dtype is not None and cls.dtypes is not None and dtype not in cls.dtypes:
            supported = ", ".join(sorted(cls.dtypes))
            raise ValueError(f"dtype {dtype} does not suit the {cls.name} attention: supported are {supported}")
        if block_size < 1 or block_size % cls.block_multiple:
            raise ValueError(
                f"block_size {block_size} does not suit the {cls.name} attention: it must be a positive multiple of "
                f"{cls.block_multiple} (auto takes {cls.default_block_size})"
            )
        if cls.head_sizes is not None and head_dim not in cls.head_sizes:
            sizes = cls.head_sizes
            every = f"{sizes[0]} to {sizes[-1]}" if isinstance(sizes, range) else ", ".join(map(str, sorted(sizes)))
            raise ValueError(f"head_dim {head_dim} does not suit the {cls.name} attention: supported are {every}")

    @abstractmethod
    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> Metadata:
        """Everything about ``step`` that the layers share. Nothing in ``forward`` may wait for the device."""

    def prepare_decodes(self, buffers: DecodeBuffers, block_size: int) -> Metadata:
        """As ``prepare``, for one decode a row of ``buffers``, whose contents change from step to step while the addresses
        stay. For back ends with ``captures_decodes``."""
        raise NotImplementedError(f"the {self.name} attention cannot be captured in a CUDA graph")

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, metadata: Metadata) -> Tensor:
        """Write the new keys and values, then attend each query to its sequence up to its own position.

        Args:
            query: [T, heads, head_dim].
            key, value: [T, kv_heads, head_dim].
            cache: this layer's [2, slots, kv_heads, head_dim], keys first; written in place.

        Returns:
            [T, heads, head_dim].
        """


def write_cache(cache: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """Put each row's key and value where ``slot_mapping`` says."""
    cache[0].index_copy_(0, slot_mapping, key)
    cache[1].index_copy_(0, slot_mapping, value)


def context_slots(block_table: Tensor, length: int, block_size: int) -> Tensor:
    """Cache rows int64 [length] of a sequence's first ``length`` tokens; ``block_table`` int64 [B]."""
    positions = torch.arange(length, device=block_table.device)
    return block_table[positions // block_size] * block_size + positions % block_size
