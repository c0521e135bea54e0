# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""The small operators fused in Triton: one launch each, in float32 inside, rounded where the plain ones round.

The kernels' arguments are not annotated but for ``tl.constexpr``: the compiler reads annotations.
"""

from typing import ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.layers.operators import Operators, Rotation

_HEADS_A_PROGRAM = 8
_COLUMNS_A_PROGRAM = 1024


@triton.jit
def norm_kernel(
    x, residual, weight, out, total, x_row, out_row, eps, SIZE: tl.constexpr, LANES: tl.constexpr, ADD: tl.constexpr
):
    """One row a program: ``out`` = norm of ``x`` (+ ``residual``, the sum going to ``total``) times ``weight``."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    mask = lane < SIZE
    values = tl.load(x + row * x_row + lane, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * SIZE + lane, mask=mask, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * SIZE + lane, rounded, mask=mask)
        values = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)
    normed = (values * scale).to(out.dtype.element_ty).to(tl.float32)
    weights = tl.load(weight + lane, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_row + lane, (normed * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotate_kernel(
    qkv,
    out,
    query_weight,
    key_weight,
    cosines,
    sines,
    qkv_row,
    eps,
    HEADS: tl.constexpr,
    TURNED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAM_HEADS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Program (row, group of heads): the first TURNED heads of ``qkv`` (HEADS of them queries), normed and turned.

    LANES is a power of two of at least HEAD_DIM / 2: the two halves of a head are held apart.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * PROGRAM_HEADS + tl.arange(0, PROGRAM_HEADS)
    lane = tl.arange(0, LANES)
    HALF: tl.constexpr = HEAD_DIM // 2
    mask = (head[:, None] < TURNED) & (lane[None, :] < HALF)
    source = qkv + row * qkv_row + head[:, None] * HEAD_DIM + lane[None, :]
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = (1.0 / tl.sqrt(squares / HEAD_DIM + eps))[:, None]
        is_query = head[:, None] < HEADS
        queries = mask & is_query
        keys = mask & (head[:, None] >= HEADS)
        lanes = lane[None, :] + head[:, None] * 0
        weight = tl.load(query_weight + lanes, mask=queries, other=0.0).to(tl.float32)
        weight += tl.load(key_weight + lanes, mask=keys, other=0.0).to(tl.float32)
        first = (first * scale).to(out.dtype.element_ty).to(tl.float32) * weight
        weight = tl.load(query_weight + HALF + lanes, mask=queries, other=0.0).to(tl.float32)
        weight += tl.load(key_weight + HALF + lanes, mask=keys, other=0.0).to(tl.float32)
        second = (second * scale).to(out.dtype.element_ty).to(tl.float32) * weight
        first = first.to(out.dtype.element_ty).to(tl.float32)
        second = second.to(out.dtype.element_ty).to(tl.float32)
    # The table's sines carry the sign: minus in the first half, plus in the second.
    inside = lane < HALF
    cosine = tl.load(cosines + row * HEAD_DIM + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sines + row * HEAD_DIM + HALF + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    target = out + row * (TURNED * HEAD_DIM) + head[:, None] * HEAD_DIM + lane[None, :]
    tl.store(target, (first * cosine - second * sine).to(out.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (second * cosine + first * sine).to(out.dtype.element_ty), mask=mask)


@triton.jit
def silu_kernel(gate_up, out, row_stride, INNER: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (row, group of columns): ``silu(gate) * up``."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = lane < INNER
    gate = tl.load(gate_up + row * row_stride + lane, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + INNER + lane, mask=mask, other=0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * INNER + lane, (gate * up).to(out.dtype.element_ty), mask=mask)


class TritonOperators(Operators):
    """One launch an operator. Rows must be contiguous in their last dimension."""

    name: ClassVar[str] = "triton"

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        if len(rows):
            _norm(rows, rows, weight, out, out, eps, add=False)
        return out.view(x.shape)

    @staticmethod
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = residual.contiguous()
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        if len(x):
            _norm(x, residual, weight, out, total, eps, add=True)
        return out, total

    @staticmethod
    def rotate_heads(qkv: Tensor, rotation: Rotation, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        return _turn(qkv, None, None, 0.0, rotation, heads, kv_heads)

    @staticmethod
    def normalize_and_rotate_heads(
        qkv: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float, rotation: Rotation, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _turn(qkv, query_weight, key_weight, eps, rotation, heads, kv_heads)

    @staticmethod
    def silu_and_mul(gate_up: Tensor) -> Tensor:
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
        grid = (rows, -(-inner // _COLUMNS_A_PROGRAM))
        silu_kernel[grid](gate_up, out, gate_up.stride(0), INNER=inner, COLUMNS=_COLUMNS_A_PROGRAM, num_warps=4)
        return out


def _norm(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, add: bool) -> None:
    rows, size = x.shape
    lanes = triton.next_power_of_2(size)
    norm_kernel[(rows,)](
        x, residual, weight, out, total, x.stride(0), out.stride(0), eps, SIZE=size, LANES=lanes, ADD=add,
        num_warps=min(max(lanes // 512, 1), 8),
    )  # fmt: skip


def _turn(
    qkv: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
    rotation: Rotation,
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, _, head_dim = qkv.shape
    turned = heads + kv_heads
    out = torch.empty((rows, turned, head_dim), dtype=qkv.dtype, device=qkv.device)
    has_norm = query_weight is not None
    rotate_kernel[(rows, -(-turned // _HEADS_A_PROGRAM))](
        qkv, out, query_weight if has_norm else qkv, key_weight if has_norm else qkv, rotation[0], rotation[1],
        qkv.stride(0), eps, HEADS=heads, TURNED=turned, HEAD_DIM=head_dim,
        LANES=triton.next_power_of_2(head_dim // 2), PROGRAM_HEADS=_HEADS_A_PROGRAM, NORM=has_norm, num_warps=4,
    )  # fmt: skip
    query, key = out.split((heads, kv_heads), dim=1)
    return query, key, qkv[:, turned:]
