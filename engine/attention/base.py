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


Metadata = TypeVar("Metadata", bound=AttentionMetadata)


class AttentionBackend(ABC, Generic[Metadata]):
    """Causal attention over a paged cache, with several query heads to a key-value head.

    Attributes:
        name: what ``EngineConfig.attention`` calls it.
        default_block_size: what ``block_size: auto`` picks.
        block_multiple: block sizes must be a multiple of this.
        head_sizes: supported ``head_dim``; ``None`` means any.
        one_row_at_a_time: the model must be run on each row alone, rows of a sequence in order. A back end that sets
            it promises bitwise the same result whatever runs beside a request.
    """

    name: ClassVar[str]
    default_block_size: ClassVar[int] = 16
    block_multiple: ClassVar[int] = 1
    head_sizes: ClassVar[frozenset[int] | None] = None
    one_row_at_a_time: ClassVar[bool] = False

    @classmethod
    def check(cls, block_size: int, head_dim: int) -> None:
        """Raise ValueError, with what is supported, for a block or head size that this back end cannot take."""
        if block_size < 1 or block_size % cls.block_multiple:
            raise ValueError(
                f"block_size {block_size} does not suit the {cls.name} attention: it must be a positive multiple of "
                f"{cls.block_multiple} (auto takes {cls.default_block_size})"
            )
        if cls.head_sizes is not None and head_dim not in cls.head_sizes:
            supported = ", ".join(map(str, sorted(cls.head_sizes)))
            raise ValueError(f"head_dim {head_dim} does not suit the {cls.name} attention: supported are {supported}")

    @abstractmethod
    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> Metadata:
        """Everything about ``step`` that the layers share."""

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
