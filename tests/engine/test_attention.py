"""Attention back ends against the formula in double precision, and the reference's promise to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.attention.backends import make_backend
from engine.attention.sdpa import SdpaAttention
from engine.executors.base import ScheduledBatch
from engine.model_input import ModelInput, build_model_input
from engine.model_runner import ModelRunner, one_row
from engine.sequence import Request, Sequence
from engine.weights.checkpoint import load_checkpoint
from tests.engine.model_driver import Driver

CPU = torch.device("cpu")


def step_of(computed: list[int], new: list[int], block_size: int) -> ModelInput:
    """Sequences with ``computed`` tokens in the cache and ``new`` ones to come, their blocks scattered."""
    blocks = iter(np.random.default_rng(5).permutation(600).tolist())
    seqs = []
    for i, (before, count) in enumerate(zip(computed, new, strict=True)):
        seq = Sequence.from_request(Request(str(i), [1] * (before + count)))
        seq.num_computed_tokens = before
        seq.block_table = [next(blocks) for _ in range(-(-(before + count) // block_size))]
        seqs.append(seq)
    return build_model_input(ScheduledBatch(seqs, new, [True] * len(seqs)), block_size)


def by_the_formula(query: torch.Tensor, cache: torch.Tensor, step: ModelInput, block_size: int) -> torch.Tensor:
    """softmax(q K^T / sqrt(d)) V for each row and head, in float64, reading the cache token by token."""
    rows, heads, head_dim = query.shape
    group = heads // cache.shape[2]
    out = torch.empty(rows, heads, head_dim, dtype=torch.float64)
    for seq in range(len(step.context_lens)):
        for row in range(step.query_start[seq], step.query_start[seq + 1]):
            slots = [
                int(step.block_tables[seq, position // block_size]) * block_size + position % block_size
                for position in range(step.positions[row] + 1)
            ]
            for head in range(heads):
                keys, values = cache[:, slots, head // group].double()
                out[row, head] = torch.softmax(keys @ query[row, head].double() / math.sqrt(head_dim), 0) @ values
    return out


CASES = {
    "one decode": ([9], [1]),
    "first token": ([0], [1]),
    "decodes of one length": ([20, 20, 20], [1, 1, 1]),
    "decodes of near lengths": ([20, 25, 18], [1, 1, 1]),
    "decodes of far lengths": ([3, 300, 7, 250], [1, 1, 1, 1]),
    "whole prompts": ([0, 0], [33, 5]),
    "later chunks": ([16, 5], [7, 12]),
    "decodes around boundaries": ([14, 15, 16, 62, 63, 64, 127, 128], [1] * 8),  # of blocks and of tiles
    "prefix hits": ([16, 64, 48], [16, 64, 17]),  # chunks that begin and end at boundaries, and one past
    "everything at once": ([0, 40, 5, 120, 0], [9, 1, 3, 1, 1]),
}


@pytest.mark.parametrize("name", ["sdpa", "reference"])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
def test_backends_equal_the_formula(name: str, case: str, block_size: int, heads: int, kv_heads: int) -> None:
    step = step_of(*CASES[case], block_size)
    torch.manual_seed(1)
    cache = torch.randn(2, 600 * block_size, kv_heads, 16)
    query, key, value = (torch.randn(len(step.token_ids), count, 16) for count in (heads, kv_heads, kv_heads))
    backend, expected_cache = make_backend(name), cache.clone()
    expected_cache[0, step.slot_mapping.tolist()], expected_cache[1, step.slot_mapping.tolist()] = key, value
    if backend.one_row_at_a_time:
        out = torch.cat(
            [
                backend.forward(
                    query[i : i + 1],
                    key[i : i + 1],
                    value[i : i + 1],
                    cache,
                    backend.prepare(one_row(step, i, True), block_size, CPU),
                )
                for i in range(len(query))
            ]
        )
    else:
        out = backend.forward(query, key, value, cache, backend.prepare(step, block_size, CPU))
    assert torch.equal(cache, expected_cache)
    torch.testing.assert_close(
        out.double(), by_the_formula(query, expected_cache, step, block_size), rtol=1e-5, atol=1e-5
    )


def test_unsupported_sizes_and_names_are_refused_with_what_is_supported() -> None:
    class Narrow(SdpaAttention):
        block_multiple = 16
        head_sizes = frozenset({64, 128})

    with pytest.raises(ValueError, match=r"block_size 24 .* multiple of 16"):
        Narrow.check(24, 64)
    with pytest.raises(ValueError, match=r"head_dim 80 .* 64, 128"):
        Narrow.check(32, 80)
    with pytest.raises(ValueError, match="sdpa, reference"):
        make_backend("flash")


@pytest.fixture(scope="module", params=["random:tiny-llama", "random:tiny-qwen3", "smollm2-135m-instruct"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_reference_is_bitwise_the_same_in_any_batch_chunk_block_and_cache_state(model: str) -> None:
    checkpoint = load_checkpoint(model)
    generator = torch.Generator().manual_seed(9)
    lengths, settings, steps = (13, 4, 18), ((16, 1, 0), (3, 7, 1), (1, 5, 2)), 3
    if not model.startswith("random:"):  # a row costs a tenth of a second
        lengths, settings, steps = (8, 4), ((3, 5, 1),), 2
    prompt, *others = (torch.randint(3, 500, (n,), generator=generator).tolist() for n in lengths)
    alone = Driver(ModelRunner(checkpoint, num_kv_blocks=60, block_size=16, attention="reference"))
    expected = alone.run([alone.start(prompt)], steps)[0]
    for block_size, chunk, batch in settings:
        driver = Driver(ModelRunner(checkpoint, num_kv_blocks=60, block_size=block_size, attention="reference"), chunk)
        seqs = [driver.start(ids) for ids in (*others[:batch], prompt)]
        assert torch.equal(driver.run(seqs, steps)[-1], expected), f"block {block_size}, chunk {chunk}, {batch} others"
        if block_size == 3:
            hit = driver.start(prompt, shared=seqs[-1], shared_blocks=2)
            assert torch.equal(driver.run([hit], steps)[0], expected), "after a prefix hit"
