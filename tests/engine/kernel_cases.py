"""What the Triton kernels are held against, on a GPU or in Triton's interpreter (TRITON_INTERPRET=1, which has to be set
before Triton is imported: tests/engine/test_triton.py runs this file so in a process of its own).

``pytest tests/engine/kernel_cases.py -m "slow or not slow"`` with that variable set runs every shape.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from engine.attention.base import DecodeBuffers
from engine.attention.triton import TritonAttention
from engine.cuda_graphs import PADDING_SLOT, pad_decodes
from engine.layers.operators import Operators
from engine.layers.triton_operators import TritonOperators
from engine.model_input import ModelInput
from tests.engine.test_attention import CASES, by_the_formula, step_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# (case, block size, query heads, key-value heads, head_dim, dtype, multiprocessors to fill: more give more splits)
Shape = tuple[str, int, int, int, int, torch.dtype, int]
FEW: list[Shape] = [
    ("first token", 16, 4, 4, 64, torch.float32, 1),
    ("decodes of far lengths", 16, 8, 1, 64, torch.bfloat16, 100),
    ("decodes of near lengths", 3, 3, 1, 80, torch.float32, 100),
    ("whole prompts", 16, 2, 2, 128, torch.bfloat16, 1),
    ("later chunks", 5, 3, 1, 64, torch.float16, 1),
    ("everything at once", 16, 6, 2, 64, torch.float32, 40),
    ("everything at once", 1, 8, 1, 32, torch.float16, 1),
    ("later chunks", 16, 2, 1, 256, torch.bfloat16, 1),
]
ALL: list[Shape] = [
    *(
        (case, block_size, group * 2, 2, 64, dtype, processors)
        for case, block_size, group, dtype, processors in product(
            CASES, (1, 3, 16, 64), (1, 3, 8), (torch.float32, torch.bfloat16), (1, 64)
        )
    ),
    *(
        ("everything at once", 16, 4, 2, head_dim, dtype, 40)
        for head_dim, dtype in product((64, 80, 96, 112, 128, 192, 256), TOLERANCE)
    ),
]

# Each of these is compiled anew: every value of every size, in few combinations, on the cases that have most in them.
ON_A_GPU: list[Shape] = [
    (case, block_size, group * 2, 2, head_dim, dtype, 64)
    for block_size, group, head_dim, dtype in (
        (1, 1, 64, torch.bfloat16),
        (3, 3, 128, torch.bfloat16),
        (16, 8, 64, torch.float16),
        (64, 4, 128, torch.bfloat16),
        (64, 2, 128, torch.bfloat16),
        (64, 1, 256, torch.float32),
        (16, 3, 256, torch.bfloat16),
        (256, 8, 96, torch.bfloat16),
        (3, 1, 112, torch.float32),
        (16, 1, 192, torch.float16),
        (64, 8, 80, torch.float32),
        (1, 3, 16, torch.float16),
    )
    for case in ("everything at once", "decodes around boundaries", "prefix hits", "decodes of far lengths")
]


def tensors(step: ModelInput, block_size: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list:
    """Query, key and value as the model gives them (slices of one row) and a cache with something everywhere."""
    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(2, 600 * block_size, kv_heads, head_dim, generator=generator).to(DEVICE, dtype)
    row = torch.randn(len(step.token_ids), heads + 2 * kv_heads, head_dim, generator=generator).to(DEVICE, dtype)
    return [*row.split((heads, kv_heads, kv_heads), dim=1), cache]


def check(shape: Shape) -> None:
    case, block_size, heads, kv_heads, head_dim, dtype, processors = shape
    step = step_of(*CASES[case], block_size)
    query, key, value, cache = tensors(step, block_size, heads, kv_heads, head_dim, dtype)
    expected_cache = cache.clone()
    slots = step.slot_mapping.tolist()
    expected_cache[0, slots], expected_cache[1, slots] = key, value
    backend = TritonAttention(heads // kv_heads, processors)
    out = backend.forward(query, key, value, cache, backend.prepare(step, block_size, DEVICE))
    assert torch.equal(cache, expected_cache)
    expected = by_the_formula(query.cpu(), expected_cache.cpu(), step, block_size)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("shape", FEW, ids=str)
def test_attention_equals_the_formula(shape: Shape) -> None:
    check(shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ALL, ids=str)
def test_attention_equals_the_formula_in_every_shape(shape: Shape) -> None:
    check(shape)


@pytest.mark.parametrize("processors", [1, 64])
@pytest.mark.parametrize(("group", "dtype"), [(1, torch.float32), (3, torch.float16), (8, torch.bfloat16)], ids=str)
def test_padding_rows_write_nowhere_and_give_zeros(processors: int, group: int, dtype: torch.dtype) -> None:
    check_padding(processors, group, dtype)


def check_padding(processors: int, group: int, dtype: torch.dtype) -> None:
    step = step_of([9, 40], [1, 1], 16)
    query, key, value, cache = tensors(step, 16, 2 * group, 2, 64, dtype)
    padded, tables = pad_decodes(step, 5)
    rows = [torch.from_numpy(row.copy()).to(DEVICE) for row in padded]
    assert rows[2][2:].tolist() == [PADDING_SLOT] * 3
    buffers = DecodeBuffers(*rows, torch.from_numpy(np.pad(tables, ((0, 0), (0, 3)))).to(DEVICE))
    more = [torch.cat([x, torch.full_like(x[:1], 7.0).expand(3, -1, -1)]) for x in (query, key, value)]
    expected_cache = cache.clone()
    slots = step.slot_mapping.tolist()
    expected_cache[0, slots], expected_cache[1, slots] = key, value
    backend = TritonAttention(group, processors)
    out = backend.forward(*more, cache, backend.prepare_decodes(buffers, 16))
    assert torch.equal(cache, expected_cache)
    assert not out[2:].any()
    expected = by_the_formula(query.cpu(), cache.cpu(), step, 16)
    torch.testing.assert_close(out[:2].cpu().double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 80)])
def test_fused_operators_equal_the_plain_ones(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    tolerance = {"rtol": 2 * TOLERANCE[dtype], "atol": 2 * TOLERANCE[dtype]}
    plain, fused = Operators(), TritonOperators()
    x, residual, weight = random(5, 576), random(5, 576), random(576)
    torch.testing.assert_close(fused.rms_norm(x, weight, 1e-6), plain.rms_norm(x, weight, 1e-6), **tolerance)
    both = zip(
        fused.add_rms_norm(x, residual, weight, 1e-6), plain.add_rms_norm(x, residual, weight, 1e-6), strict=True
    )
    for got, expected in both:
        torch.testing.assert_close(got, expected, **tolerance)
    gate_up = random(5, 2 * 1500)
    torch.testing.assert_close(fused.silu_and_mul(gate_up), plain.silu_and_mul(gate_up.clone()), **tolerance)
    qkv = random(5, heads + 2 * kv_heads, head_dim)
    angles = torch.rand(5, 1, head_dim // 2, generator=generator) * 6
    cosines = torch.cat((angles.cos(), angles.cos()), dim=-1).to(DEVICE, dtype)
    sines = torch.cat((-angles.sin(), angles.sin()), dim=-1).to(DEVICE, dtype)
    weights = random(head_dim), random(head_dim)
    for got, expected in (
        *zip(
            fused.rotate_heads(qkv, (cosines, sines), heads, kv_heads),
            plain.rotate_heads(qkv, (cosines, sines), heads, kv_heads),
            strict=True,
        ),
        *zip(
            fused.normalize_and_rotate_heads(qkv, *weights, 1e-6, (cosines, sines), heads, kv_heads),
            plain.normalize_and_rotate_heads(qkv, *weights, 1e-6, (cosines, sines), heads, kv_heads),
            strict=True,
        ),
    ):
        torch.testing.assert_close(got, expected, **tolerance)
