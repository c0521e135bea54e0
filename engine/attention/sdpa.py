"""Attention by torch's ``scaled_dot_product_attention`` on keys and values gathered from the cache.

Sequences with one new token (decode) are gathered together, padded, when their contexts are of similar length; a
sequence with several (a prompt's chunk) is computed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionMetadata, write_cache
from engine.model_input import ModelInput

# Padding costs copies and arithmetic; another call costs about as much as this many tokens of context.
_CALL_COST_TOKENS = 64


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar context.

    Attributes:
        rows: int64 [B], rows of the step; ``None`` when they are all its rows, in order.
        slots: int64 [B * L], cache rows, each sequence padded to the longest with its own last row.
        length: L.
        mask: bool [B, 1, 1, L], true where there is context; ``None`` when nothing is padded.
    """

    rows: Tensor | None
    slots: Tensor
    length: int
    mask: Tensor | None


@dataclass(frozen=True)
class Chunk:
    """Several new tokens of one sequence: rows ``start:stop``, cache rows int64 [context], and bool mask
    [T, context].

    Without a mask the chunk is the whole context and plainly causal.
    """

    start: int
    stop: int
    slots: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class SdpaMetadata(AttentionMetadata):
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


class SdpaAttention(AttentionBackend[SdpaMetadata]):
    """Any block size, any head size, any device."""

    name: ClassVar[str] = "sdpa"

    def prepare(self, step: ModelInput, block_size: int, device: torch.device) -> SdpaMetadata:
        counts = np.diff(step.query_start)
        decodes = [_decode_group(step, group, block_size, device) for group in _similar(step, counts == 1)]
        chunks = [_chunk(step, int(i), block_size, device) for i in np.flatnonzero(counts > 1)]
        slot_mapping = torch.from_numpy(step.slot_mapping).to(device, torch.int64)
        return SdpaMetadata(slot_mapping, tuple(decodes), tuple(chunks))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, metadata: SdpaMetadata) -> Tensor:
        write_cache(cache, key, value, metadata.slot_mapping)
        decodes = metadata.decodes
        if not metadata.chunks and len(decodes) == 1 and decodes[0].rows is None:
            return _decode(query, cache, decodes[0])
        out = torch.empty_like(query)
        for group in decodes:
            rows = group.rows
            if rows is None:
                out.copy_(_decode(query, cache, group))
            else:
                out.index_copy_(0, rows, _decode(query.index_select(0, rows), cache, group))
        for chunk in metadata.chunks:
            out[chunk.start : chunk.stop] = _prefill(query[chunk.start : chunk.stop], cache, chunk)
        return out


def _decode(query: Tensor, cache: Tensor, group: DecodeGroup) -> Tensor:
    """The query heads of a key-value head are its rows, so that keys and values need not be repeated."""
    batch, heads, head_dim = query.shape
    kv_heads = cache.shape[2]
    shape = (batch, group.length, kv_heads, head_dim)
    keys = cache[0].index_select(0, group.slots).view(shape).transpose(1, 2)
    values = cache[1].index_select(0, group.slots).view(shape).transpose(1, 2)
    grouped = query.view(batch, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask).reshape(query.shape)


def _prefill(query: Tensor, cache: Tensor, chunk: Chunk) -> Tensor:
    repeats = query.shape[1] // cache.shape[2]
    keys = cache[0].index_select(0, chunk.slots).repeat_interleave(repeats, dim=1).transpose(0, 1)
    values = cache[1].index_select(0, chunk.slots).repeat_interleave(repeats, dim=1).transpose(0, 1)
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=chunk.mask, is_causal=chunk.mask is None
    )
    return attended[0].transpose(0, 1)


def _similar(step: ModelInput, is_decode: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Decode sequences in groups so that padding wastes less than half of the work, plus the cost of a call."""
    seqs = np.flatnonzero(is_decode)
    if not len(seqs):
        return []
    lengths = step.context_lens[seqs]
    if lengths.max() * len(seqs) <= 1.5 * lengths.sum() + _CALL_COST_TOKENS:
        return [seqs]
    groups: list[list[int]] = []
    for i in np.argsort(lengths, kind="stable"):
        if groups and lengths[i] <= 1.5 * lengths[groups[-1][0]] + _CALL_COST_TOKENS:
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    return [seqs[np.sort(group)] for group in groups]


def _decode_group(step: ModelInput, seqs: NDArray[np.intp], block_size: int, device: torch.device) -> DecodeGroup:
    lengths = step.context_lens[seqs].astype(np.int64)
    longest = int(lengths.max())
    positions = np.arange(longest)
    own = np.minimum(positions, lengths[:, None] - 1)
    tables = step.block_tables[seqs].astype(np.int64)
    slots = np.take_along_axis(tables, own // block_size, axis=1) * block_size + own % block_size
    mask = None
    if lengths.min() < longest:
        mask = torch.from_numpy(positions < lengths[:, None])[:, None, None, :].to(device)
    whole = len(seqs) == len(step.token_ids)
    rows = None if whole else torch.from_numpy(step.query_start[seqs].astype(np.int64)).to(device)
    return DecodeGroup(rows, torch.from_numpy(slots.ravel()).to(device), longest, mask)


def _chunk(step: ModelInput, seq: int, block_size: int, device: torch.device) -> Chunk:
    start, stop, context = int(step.query_start[seq]), int(step.query_start[seq + 1]), int(step.context_lens[seq])
    positions = np.arange(context)
    slots = step.block_tables[seq].astype(np.int64)[positions // block_size] * block_size + positions % block_size
    mask = None
    if stop - start < context:
        mask = torch.from_numpy(positions <= step.positions[start:stop, None]).to(device)
    return Chunk(start, stop, torch.from_numpy(slots).to(device), mask)
