"""Matrix layers. Several of a checkpoint's matrices may lie below each other in one, to be multiplied at once.

With tensor parallelism a *column-parallel* layer holds a share of each matrix's outputs, a *row-parallel* one a share of its
inputs (Shoeybi et al. 2019); the first needs no communication, the second one sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.parallel import TensorParallel


class ColumnParallelLinear(nn.Module):
    """``x @ weight.T + bias`` with ``weight`` [this rank's share of the sum of ``out_sizes``, ``in_size``].

    ``out_sizes`` are the rows of each matrix merged here, whole: (q, k, v) or (gate, up).
    """

    def __init__(
        self,
        in_size: int,
        out_sizes: Sequence[int],
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        parallel: TensorParallel,
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.out_sizes = tuple(parallel.share(size) for size in out_sizes)
        rows = sum(self.out_sizes)
        self.weight = nn.Parameter(torch.empty(rows, in_size, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype, device=device), requires_grad=False) if bias else None

    def load(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Copy this rank's rows of one matrix (and bias) per entry of ``out_sizes``, in order."""
        for part, weight in zip(self.weight.split(self.out_sizes), weights, strict=True):
            part.copy_(self.parallel.rows_of(weight))
        if self.bias is not None:
            for part, bias in zip(self.bias.split(self.out_sizes), biases, strict=True):
                part.copy_(self.parallel.rows_of(bias))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """``x @ weight.T`` summed over the ranks, with ``weight`` [``out_size``, this rank's share of ``in_size``]."""

    def __init__(
        self, in_size: int, out_size: int, dtype: torch.dtype, device: torch.device, parallel: TensorParallel
    ) -> None:
        super().__init__()
        self.parallel = parallel
        shape = (out_size, parallel.share(in_size))
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)

    def load(self, weight: Tensor) -> None:
        """Copy this rank's columns of the matrix."""
        self.weight.copy_(self.parallel.columns_of(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.parallel.sum(F.linear(x, self.weight))
