"""Tensor parallelism (Shoeybi et al. 2019): how matrices are shared between ranks, and the sums and gathers that join them.

A rank holds a share of the heads, of the feed-forward's columns and of the vocabulary; what it computes alone is joined
by one sum after the attention's output matrix and one after the feed-forward's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.models.config import ModelConfig


@dataclass(frozen=True)
class TensorParallel:
    """One rank's view of its group; the default is a model that is not shared. ``torch.distributed`` has to be set up."""

    rank: int = 0
    size: int = 1

    def sum(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` added up, in place, on every rank."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def gather_columns(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` [R, C] side by side, [R, size * C], on every rank."""
        if self.size == 1:
            return x
        parts = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        dist.all_gather(list(parts.unbind(0)), x.contiguous())
        return parts.transpose(0, 1).reshape(x.shape[0], -1)

    def share(self, total: int) -> int:
        """This rank's part of ``total`` things that divide evenly."""
        assert total % self.size == 0, (total, self.size)
        return total // self.size

    def rows_of(self, matrix: Tensor) -> Tensor:
        """This rank's rows of a checkpoint's ``matrix`` (or vector), which divide evenly."""
        rows = self.share(matrix.shape[0])
        return matrix[self.rank * rows : (self.rank + 1) * rows]

    def columns_of(self, matrix: Tensor) -> Tensor:
        """This rank's columns of a checkpoint's ``matrix``."""
        columns = self.share(matrix.shape[1])
        return matrix[:, self.rank * columns : (self.rank + 1) * columns]


WHOLE = TensorParallel()


def check_shares(config: ModelConfig, size: int) -> None:
    """Raise ValueError where a model cannot be shared between ``size`` ranks; the message has the sizes that can."""
    divided = {
        "query heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "feed-forward columns": config.intermediate_size,
    }
    if any(count % size for count in divided.values()):
        possible = [n for n in range(1, config.num_kv_heads + 1) if all(count % n == 0 for count in divided.values())]
        counts = ", ".join(f"{count} {name}" for name, count in divided.items())
        raise ValueError(
            f"tensor_parallel_size {size} does not divide the model's {counts}; possible are "
            f"{', '.join(map(str, possible))}"
        )
