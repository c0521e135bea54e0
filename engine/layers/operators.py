"""The small operators between the matrix products: norms, rotation, SwiGLU. Plain torch here; the same fused in Triton in
``triton_operators.py``, or by ``torch.compile``. On a GPU a step of few rows is mostly their launches.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.activation import silu_and_mul
from engine.layers.rotary_embedding import rotate

Rotation = tuple[Tensor, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in float32 (Zhang and Sennrich 2019)."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    # Rounded once before the weight, as transformers does.
    return F.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of ``x + residual``, and that sum, which is the next residual."""
    residual = x + residual
    return rms_norm(residual, weight, eps), residual


def rotate_heads(qkv: Tensor, rotation: Rotation, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """``qkv`` [T, heads + 2 * kv_heads, head_dim] as query, key and value, the first two turned by their positions."""
    # Queries and keys lie side by side, so one call turns both.
    both, value = qkv.split((heads + kv_heads, kv_heads), dim=1)
    query, key = rotate(both, *rotation).split((heads, kv_heads), dim=1)
    return query, key, value


def normalize_and_rotate_heads(
    qkv: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float, rotation: Rotation, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``rotate_heads``, with an RMS norm of each query and key head before the turn (Qwen3)."""
    query, key, value = qkv.split((heads, kv_heads, kv_heads), dim=1)
    query = rotate(rms_norm(query, query_weight, eps), *rotation)
    return query, rotate(rms_norm(key, key_weight, eps), *rotation), value


class Operators:
    """Plain torch, the meaning of all the others. ``EngineConfig.operators`` calls it ``torch``."""

    name: ClassVar[str] = "torch"
    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    rotate_heads = staticmethod(rotate_heads)
    normalize_and_rotate_heads = staticmethod(normalize_and_rotate_heads)
    silu_and_mul = staticmethod(silu_and_mul)


class CompiledOperators(Operators):
    """The plain functions through ``torch.compile``, with dynamic row counts: compiled at the first call of each."""

    name: ClassVar[str] = "compile"

    def __init__(self) -> None:
        for function in (rms_norm, add_rms_norm, rotate_heads, normalize_and_rotate_heads, silu_and_mul):
            compiled: Any = torch.compile(function, dynamic=True)
            setattr(self, function.__name__, compiled)


def make_operators(name: str) -> Operators:
    """The operators called ``name``: torch, compile or triton.

    Raises:
        ValueError: there are none of this name, or Triton is missing.
    """
    if name == "torch":
        return Operators()
    if name == "compile":
        return CompiledOperators()
    if name == "triton":
        try:
            from engine.layers.triton_operators import TritonOperators
        except ImportError as error:
            raise ValueError(f"operators triton cannot be had here ({error}); take torch") from error
        return TritonOperators()
    raise ValueError(f"no operators {name!r}; there are torch, compile, triton")
