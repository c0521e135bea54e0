"""Attention by our own Triton kernels: any block size, one tile for all query heads of a key-value head, decodes in
CUDA graphs.

A step's sequences with one new token go to the decode kernel, which splits long contexts over more programs when the
batch alone would not fill the device; all others go to the prefill kernel in tiles of new tokens. Both read the cache
through the block tables, so chunks, prefix hits and mixtures are no special cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionMetadata, DecodeBuffers
from engine.attention.triton_kernels import combine_kernel, decode_kernel, prefill_kernel, write_kernel
from engine.model_input import ModelInput
from engine.transfer import to_device

_LOG2_E = math.log2(math.e)
_MAX_SPLITS = 32
_PROGRAMS_PER_PROCESSOR = 4  # decode programs wanted for each multiprocessor before a context is split no further
_INTERPRETED_PROCESSORS = 8  # where there is no device to ask


@dataclass(frozen=True)
class TritonMetadata(AttentionMetadata):
    """``slot_mapping`` int32 [T] (negative: write nowhere), and of the step's S sequences:

    Attributes:
        query_start: int32 [S + 1].
        context_lens: int32 [S].
        block_tables: int32 [S, W].
        decode_seqs: int32 [B], sequences with one new token.
        tile_seqs, tile_firsts: int32 [tiles], for each prefill tile its sequence and first new token of it.
        block_size: tokens to a block.
    """

    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    decode_seqs: Tensor
    tile_seqs: Tensor
    tile_firsts: Tensor
    block_size: int


class TritonAttention(AttentionBackend[TritonMetadata]):
    """Triton kernels (engine/attention/triton_kernels.py).

    Args:
        group: query heads to a key-value head, on which the tiling of a step's chunks depends.
        processors: multiprocessors to fill; ``None`` asks the device.
    """

    name: ClassVar[str] = "triton"
    default_block_size: ClassVar[int] = 64
    head_sizes: ClassVar[range] = range(16, 257)
    captures_decodes: ClassVar[bool] = True

    def __init__(self, group: int = 1, processors: int | None = None) -> None:
        super().__init__(group)
        self._processors = processors
        self._tile_rows = _tile_rows(group)

    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> TritonMetadata:
        counts = np.diff(step.query_start)
        tile_seqs, tile_firsts = prefill_tiles(counts, self._tile_rows // self.group)
        decode_seqs = np.flatnonzero(counts == 1).astype(np.int32)
        arrays = (
            step.slot_mapping, step.query_start, step.context_lens, step.block_tables, decode_seqs, tile_seqs, tile_firsts
        )  # fmt: skip
        slots, starts, lengths, tables, decodes, seqs, firsts = to_device(arrays, device)
        return TritonMetadata(slots, starts, lengths, tables, decodes, seqs, firsts, block_size)

    def prepare_decodes(self, buffers: DecodeBuffers, block_size: int) -> TritonMetadata:
        rows = len(buffers.context_lens)
        count = torch.arange(rows + 1, dtype=torch.int32, device=buffers.context_lens.device)
        nothing = count[:0]
        return TritonMetadata(
            buffers.slot_mapping, count, buffers.context_lens, buffers.block_tables, count[:rows], nothing, nothing,
            block_size,
        )  # fmt: skip

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, metadata: TritonMetadata) -> Tensor:
        assert query.shape[1] == self.group * cache.shape[2], "the back end was made for another number of heads"
        write(key, value, cache, metadata.slot_mapping)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if len(metadata.tile_seqs):
            self._prefill(query, cache, out, metadata)
        if len(metadata.decode_seqs):
            self._decode(query, cache, out, metadata)
        return out

    def _prefill(self, query: Tensor, cache: Tensor, out: Tensor, metadata: TritonMetadata) -> None:
        head_dim, kv_heads = query.shape[2], cache.shape[2]
        sizes = _tiles(head_dim, query.dtype)
        grid = (len(metadata.tile_seqs), kv_heads)
        prefill_kernel[grid](
            query, cache[0], cache[1], out,
            metadata.tile_seqs, metadata.tile_firsts, metadata.query_start, metadata.context_lens, metadata.block_tables,
            query.stride(0), query.stride(1), out.stride(0), out.stride(1), cache.stride(1), cache.stride(2),
            metadata.block_tables.stride(0), head_dim**-0.5 * _LOG2_E,
            GROUP=self.group, HEAD_DIM=head_dim, LANES=_lanes(head_dim), BLOCK_SIZE=metadata.block_size,
            TILE_M=self._tile_rows, TILE_N=sizes.prefill_columns, PRECISION=sizes.precision,
            WIDEN=query.device.type == "cpu", num_warps=sizes.prefill_warps, num_stages=sizes.stages,
        )  # fmt: skip

    def _decode(self, query: Tensor, cache: Tensor, out: Tensor, metadata: TritonMetadata) -> None:
        _, heads, head_dim = query.shape
        kv_heads, batch = cache.shape[2], len(metadata.decode_seqs)
        sizes = _tiles(head_dim, query.dtype)
        longest = metadata.block_tables.shape[1] * metadata.block_size
        splits = num_splits(batch * kv_heads, longest, sizes.decode_columns, self._multiprocessors(query.device))
        shape = (batch, heads, splits) if splits > 1 else (1, 1, 1)
        mixed = torch.empty((*shape, head_dim if splits > 1 else 1), dtype=torch.float32, device=query.device)
        best, total = torch.empty((2, *shape), dtype=torch.float32, device=query.device)
        decode_kernel[(batch, kv_heads, splits)](
            query, cache[0], cache[1], out, mixed, best, total,
            metadata.decode_seqs, metadata.query_start, metadata.context_lens, metadata.block_tables,
            query.stride(0), query.stride(1), out.stride(0), out.stride(1), cache.stride(1), cache.stride(2),
            metadata.block_tables.stride(0), head_dim**-0.5 * _LOG2_E,
            GROUP=self.group, HEADS=heads, HEAD_DIM=head_dim, LANES=_lanes(head_dim), BLOCK_SIZE=metadata.block_size,
            ROWS=max(16, _power_of_two(self.group)), TILE_N=sizes.decode_columns, SPLITS=splits,
            PRECISION=sizes.precision, WIDEN=query.device.type == "cpu", num_warps=4, num_stages=sizes.stages,
        )  # fmt: skip
        if splits > 1:
            combine_kernel[(batch, heads)](
                mixed, best, total, out, metadata.decode_seqs, metadata.query_start, out.stride(0), out.stride(1),
                HEADS=heads, HEAD_DIM=head_dim, LANES=_lanes(head_dim), SPLITS=splits, num_warps=2,
            )  # fmt: skip

    def _multiprocessors(self, device: torch.device) -> int:
        if self._processors is None:
            on_gpu = device.type == "cuda"
            self._processors = (
                torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else _INTERPRETED_PROCESSORS
            )
        return self._processors


def write(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Keys and values [T, kv_heads, head_dim] to the rows ``slots`` [T] of ``cache``; negative slots write nowhere."""
    rows, heads, head_dim = key.shape
    write_kernel[(rows,)](
        key, value, cache[0], cache[1], slots, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        cache.stride(1), HEADS=heads, HEAD_DIM=head_dim, WIDTH=_power_of_two(heads * head_dim), num_warps=4,
    )  # fmt: skip


def prefill_tiles(counts: np.ndarray[Any, Any], tokens: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tiles of at most ``tokens`` new tokens of one sequence, for every sequence with more than one: int32 sequence and
    first new token of each tile, the latest tokens of a sequence first, which read the longest context."""
    seqs = np.flatnonzero(counts > 1)
    tiles = -(-counts[seqs] // tokens)
    ends = np.cumsum(tiles)
    number = np.repeat(ends, tiles) - 1 - np.arange(ends[-1] if len(ends) else 0)
    return np.repeat(seqs, tiles).astype(np.int32), (number * tokens).astype(np.int32)


def num_splits(programs: int, longest: int, tile: int, processors: int) -> int:
    """Shares of a context, a power of two: as many as fill the device, but not more than the longest context has tiles."""
    wanted = min(_MAX_SPLITS, processors * _PROGRAMS_PER_PROCESSOR // programs, -(-longest // tile))
    return 1 << max(wanted, 1).bit_length() - 1


@dataclass(frozen=True)
class _Tiles:
    prefill_columns: int
    prefill_warps: int
    decode_columns: int
    stages: int
    precision: str


def _tiles(head_dim: int, dtype: torch.dtype) -> _Tiles:
    """Context positions a tile, and how many are loaded ahead, so that it all fits into shared memory, and in half precision
    into the registers (tests/engine/compile_kernels.py asks the assembler)."""
    if dtype == torch.float32:
        return _Tiles(16 if head_dim > 128 else 32, 8, 32, 2, "ieee")
    if head_dim > 128:
        return _Tiles(32, 8, 32, 2, "tf32")
    return _Tiles(64, 4, 64, 3, "tf32")


def _tile_rows(group: int) -> int:
    return max(64, _power_of_two(group))


def _lanes(head_dim: int) -> int:
    return max(16, _power_of_two(head_dim))


def _power_of_two(n: int) -> int:
    """The smallest power of two of at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()
