"""The token embedding and the head that turns hidden states into logits; one matrix when they are tied."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.parallel import TensorParallel


class TokenEmbedding(nn.Module):
    """A table [vocab, hidden], read by token id, or (as a head) multiplied with hidden states.

    With tensor parallelism each rank holds as many rows, the last ones of the last ranks empty where the vocabulary does not
    divide.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device, parallel: TensorParallel
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.vocab_size = vocab_size
        self.rows = -(-vocab_size // parallel.size)
        self.start = parallel.rank * self.rows
        self.weight = nn.Parameter(torch.empty(self.rows, hidden_size, dtype=dtype, device=device), requires_grad=False)

    def load(self, weight: Tensor) -> None:
        """Copy this rank's rows."""
        own = weight[self.start : self.start + self.rows]
        self.weight[: len(own)].copy_(own)
        self.weight[len(own) :].zero_()

    def forward(self, token_ids: Tensor) -> Tensor:
        """Rows of ``token_ids`` [T] -> [T, hidden]."""
        if self.parallel.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.start
        is_own = (local >= 0) & (local < self.rows)
        found = F.embedding(local.clamp(0, self.rows - 1), self.weight)
        return self.parallel.sum(found.masked_fill(~is_own[:, None], 0.0))

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [R, vocab] of ``hidden`` [R, hidden]."""
        scores = self.parallel.gather_columns(F.linear(hidden, self.weight))
        return scores[:, : self.vocab_size].float()
