"""Matrix layers. Several of a checkpoint's matrices may lie below each other in one, to be multiplied at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """``x @ weight.T + bias`` with ``weight`` [sum of ``out_sizes``, ``in_size``].

    ``out_sizes`` are the rows of each matrix merged here: (q, k, v), (gate, up), or one alone.
    """

    def __init__(
        self, in_size: int, out_sizes: Sequence[int], bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.out_sizes = tuple(out_sizes)
        rows = sum(out_sizes)
        self.weight = nn.Parameter(torch.empty(rows, in_size, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype, device=device), requires_grad=False) if bias else None

    def load(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Copy one matrix (and bias) per entry of ``out_sizes``, in order."""
        for part, weight in zip(self.weight.split(self.out_sizes), weights, strict=True):
            part.copy_(weight)
        if self.bias is not None:
            for part, bias in zip(self.bias.split(self.out_sizes), biases, strict=True):
                part.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
