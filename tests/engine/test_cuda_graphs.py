"""What surrounds a CUDA graph, without one: buckets, padding, warm-up step, size of the cache; flash-attn by a stand-in."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from engine.attention.base import DecodeBuffers
from engine.cuda_graphs import DecodeGraphs, bucket_of, bucket_sizes, is_decode_step, pad_decodes
from engine.kv_sizing import blocks_that_fit, largest_step
from engine.transfer import aligned_starts, pack
from tests.engine.test_attention import CASES, by_the_formula, step_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 20, 64, 100, 256, 300, 1000])
def test_every_batch_has_a_bucket_and_none_is_padded_to_twice_its_size(most: int) -> None:
    sizes = bucket_sizes(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        bucket = bucket_of(rows, sizes)
        assert bucket >= rows
        assert bucket < 2 * rows or rows in (1, 2, 4)


def test_only_steps_of_one_new_token_each_are_captured() -> None:
    assert is_decode_step(step_of([5, 9], [1, 1], 4))
    assert not is_decode_step(step_of([5, 9], [1, 2], 4))
    assert not is_decode_step(step_of([], [], 4))


def test_padding_rows_have_slot_minus_one_and_no_context() -> None:
    step = step_of([5, 9], [1, 1], 4)
    rows, tables = pad_decodes(step, 4)
    assert rows[:, :2].tolist() == [list(a) for a in (step.token_ids, step.positions, step.slot_mapping, [6, 10])]
    assert rows[:, 2:].tolist() == [[0, 0], [0, 0], [-1, -1], [0, 0]]
    assert tables.shape == (4, 3)
    assert tables.min() >= 0
    assert tables[1].tolist() == step.block_tables[1].tolist()


@pytest.mark.parametrize("count", range(1, 8))
def test_static_buffers_hold_the_step_and_logits_come_back_for_the_rows_that_want_them(count: int) -> None:
    """A model whose logits are what it read: its inputs, summed with its blocks."""
    graphs = DecodeGraphs(7, table_width=5, vocab_size=1, device=CPU)

    def decode(buffers: DecodeBuffers) -> torch.Tensor:
        total = buffers.token_ids + 10 * buffers.positions + 1000 * buffers.context_lens + 7 * buffers.slot_mapping
        return (total + buffers.block_tables.sum(dim=1)).float()[:, None]

    graphs.capture(decode)
    graphs.replay(step_of([17] * 7, [1] * 7, 4))  # leaves old numbers in every buffer
    step = step_of([i + 1 for i in range(count)], [1] * count, 4)
    assert graphs.takes(step)
    expected = step.token_ids + 10 * step.positions + 1000 * step.context_lens + 7 * step.slot_mapping
    got = graphs.replay(step)[:, 0]
    blocks = [graphs._tables[i].sum().item() for i in range(count)]
    assert got.tolist() == (expected + np.array(blocks)).tolist()
    width = step.block_tables.shape[1]
    assert graphs._tables[:count, :width].tolist() == np.maximum(step.block_tables, 0).tolist()
    some = SimpleNamespace(**{name: getattr(step, name) for name in step.__slots__})
    some.logit_rows = np.array([count - 1], dtype=np.int32)
    assert graphs.replay(some)[:, 0].tolist() == got[-1:].tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(("seats", "budget", "longest"), [(4, 100, 4096), (16, 256, 40), (8, 8, 10), (3, 200, 50)])
def test_the_warm_up_fills_the_budget_with_whole_prompts_in_blocks_of_their_own(
    seats: int, budget: int, longest: int
) -> None:
    step = largest_step(seats, budget, longest, 16)
    assert len(step.context_lens) == seats == len(step.logit_rows)
    assert len(step.token_ids) == min(budget, seats * longest)
    assert step.context_lens.max() <= longest
    assert len(set(step.slot_mapping.tolist())) == len(step.slot_mapping)
    for seq in range(seats):
        rows = slice(step.query_start[seq], step.query_start[seq + 1])
        assert step.positions[rows].tolist() == list(range(step.context_lens[seq]))
        blocks = step.block_tables[seq, step.positions[rows] // 16]
        assert (step.slot_mapping[rows] == blocks * 16 + step.positions[rows] % 16).all()


def test_the_cache_takes_what_the_share_leaves() -> None:
    gib = 2**30
    assert blocks_that_fit(100 * gib, 20 * gib, 5 * gib, 0.9, gib) == 65
    with pytest.raises(ValueError, match=r"allows 10\.0, and 8\.0 are taken and 3\.0 more"):
        blocks_that_fit(100 * gib, 8 * gib, 3 * gib, 0.1, gib)


def test_packed_arrays_begin_at_aligned_places() -> None:
    arrays = [np.arange(5, dtype=np.int32), np.zeros((0,), dtype=np.int32), np.full((2, 20), 7, dtype=np.int32)]
    starts, size = aligned_starts(arrays)
    assert (starts, size) == ([0, 32, 32], 96)
    out = np.full(size, -9, dtype=np.int32)
    pack(arrays, starts, out)
    assert out[:6].tolist() == [0, 1, 2, 3, 4, -9]
    assert out[32:72].tolist() == [7] * 40


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """The package's signature (2.8), by the formula: ``k`` and ``v`` are [blocks, block size, kv heads, head_dim]."""
    assert causal
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
    assert k.shape[1] % 256 == 0
    counts, contexts = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert (max(counts), max(contexts)) == (max_seqlen_q, max_seqlen_k)
    assert int(block_table.min()) >= 0
    out, group = torch.empty_like(q), q.shape[1] // k.shape[2]
    for seq, (count, context) in enumerate(zip(counts, contexts, strict=True)):
        keys, values = (x[block_table[seq].long()].flatten(0, 1)[:context].repeat_interleave(group, 1) for x in (k, v))
        rows = slice(int(cu_seqlens_q[seq]), int(cu_seqlens_q[seq + 1]))
        mask = torch.arange(context) <= torch.arange(context - count, context)[:, None]
        scores = torch.einsum("qhd,khd->hqk", q[rows].float(), keys.float()) * softmax_scale
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, values.float()).to(q.dtype)
    return out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """The package's signature (2.8) for one query a sequence, ``q`` [B, 1, heads, head_dim]."""
    assert k is None
    assert q.shape[1] == 1
    lengths = cache_seqlens.tolist()
    starts = [torch.tensor(np.concatenate(([0], np.cumsum(x))), dtype=torch.int32) for x in ([1] * len(q), lengths)]
    longest = (1, max(lengths))
    return flash_attn_varlen_func(
        q.squeeze(1), k_cache, v_cache, *starts, *longest, 0.0, softmax_scale, causal, block_table=block_table
    ).unsqueeze(1)


@pytest.mark.parametrize("case", list(CASES))
def test_flash_attention_calls_the_package_as_it_wants_to_be_called(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("flash_attn")
    stand_in.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    stand_in.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    monkeypatch.delitem(sys.modules, "engine.attention.flash_attn", raising=False)
    from engine.attention.flash_attn import FlashAttention

    assert not inspect.isabstract(FlashAttention)
    assert FlashAttention.default_block_size == 256
    with pytest.raises(ValueError, match="multiple of 256"):
        FlashAttention.check(64, 128)
    with pytest.raises(ValueError, match="float32 does not suit"):
        FlashAttention.check(256, 128, "float32")
    step = step_of(*CASES[case], 256)
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(2, 600 * 256, 2, 16, generator=generator)
    query, key, value = torch.randn(len(step.token_ids), 8, 16, generator=generator).split((4, 2, 2), dim=1)
    backend = FlashAttention(2)
    out = backend.forward(query, key, value, cache, backend.prepare(step, 256, CPU))
    monkeypatch.delitem(sys.modules, "engine.attention.flash_attn")
    assert torch.equal(cache[0, step.slot_mapping.tolist()], key)
    expected = by_the_formula(query, cache, step, 256)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
