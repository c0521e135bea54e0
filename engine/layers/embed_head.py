"""The token embedding and the head that turns hidden states into logits; one matrix when they are tied."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A table [vocab, hidden], read by token id, or (as a head) multiplied with hidden states."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(vocab_size, hidden_size, dtype=dtype, device=device), requires_grad=False
        )

    def load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Rows of ``token_ids`` [T] -> [T, hidden]."""
        return F.embedding(token_ids, self.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [R, vocab] of ``hidden`` [R, hidden]."""
        return F.linear(hidden, self.weight).float()
