"""SwiGLU (Shazeer 2020): the gate and up projections come merged in one row."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``gate_up`` [T, 2 * inner] -> [T, inner]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
