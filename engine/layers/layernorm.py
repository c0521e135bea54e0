"""Root-mean-square norm (Zhang and Sennrich 2019): the weight of one; the operators compute with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.layers.operators import Operators


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device, operators: Operators) -> None:
        super().__init__()
        self.eps = eps
        self.operators = operators
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    def load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.operators.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of ``x + residual``, and that sum, which is the next residual."""
        return self.operators.add_rms_norm(x, residual, self.weight, self.eps)
