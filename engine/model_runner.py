"""Holds the model and its key-value cache and computes a step's logits with torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backends import make_backend
from engine.attention.base import AttentionBackend
from engine.model_input import ModelInput
from engine.models.config import ModelConfig
from engine.models.llama import LlamaForCausalLM
from engine.weights.checkpoint import Checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ModelRunner:
    """``forward(step)``: from rows of tokens to logits, the cache updated on the way.

    Args:
        checkpoint: the weights.
        num_kv_blocks: blocks of the key-value cache.
        block_size: tokens to a block; the back end must support it.
        max_model_len: longest sequence, at most what the model was made for; ``None`` takes that.
        attention: name of the attention back end.
        dtype: float32 or bfloat16, of weights, activations and cache.
        device: cpu or cuda.

    Raises:
        ValueError: a size or name that does not fit; the message says what would.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_kv_blocks: int,
        block_size: int = 16,
        max_model_len: int | None = None,
        attention: str = "sdpa",
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        config = checkpoint.config
        self.attention: AttentionBackend[Any] = make_backend(attention)
        self.attention.check(block_size, config.head_dim)
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not supported; supported are {', '.join(DTYPES)}")
        if num_kv_blocks < 1:
            raise ValueError(f"num_kv_blocks is {num_kv_blocks}; it must be at least 1")
        limit = config.max_position_embeddings
        if max_model_len is not None and not 1 <= max_model_len <= limit:
            raise ValueError(f"max_model_len is {max_model_len}; {checkpoint.source} takes 1 to {limit}")
        self.config = config
        self.num_kv_blocks = num_kv_blocks
        self.block_size = block_size
        self.max_model_len = limit if max_model_len is None else max_model_len
        self.device = torch.device(device)
        with torch.inference_mode():
            self.model = LlamaForCausalLM(config, self.max_model_len, DTYPES[dtype], self.device)
            self.model.load(checkpoint.tensors)
            self.cache = torch.zeros(
                (config.num_layers, 2, num_kv_blocks * block_size, config.num_kv_heads, config.head_dim),
                dtype=DTYPES[dtype],
                device=self.device,
            )

    @torch.inference_mode()
    def forward(self, step: ModelInput) -> NDArray[np.float32]:
        """float32 logits [R, vocab] of ``step.logit_rows``."""
        if not self.attention.one_row_at_a_time:
            return self._forward(step).cpu().numpy()
        wanted = set(step.logit_rows.tolist())
        rows = [self._forward(one_row(step, row, row in wanted)) for row in range(len(step.token_ids))]
        return torch.cat(rows).cpu().numpy()

    def _forward(self, step: ModelInput) -> Tensor:
        def move(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device, torch.int64)

        metadata = self.attention.prepare(step, self.block_size, self.device)
        return self.model(
            move(step.token_ids), move(step.positions), move(step.logit_rows), self.cache, self.attention, metadata
        )


def cache_bytes_per_block(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes that one block of the key-value cache takes over all layers."""
    values = 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size
    return values * DTYPES[dtype].itemsize


def one_row(step: ModelInput, row: int, wants_logits: bool) -> ModelInput:
    """Row ``row`` of ``step`` as a step of its own."""
    seq = int(np.searchsorted(step.query_start, row, side="right")) - 1
    return ModelInput(
        token_ids=step.token_ids[row : row + 1],
        positions=step.positions[row : row + 1],
        query_start=np.array([0, 1], dtype=np.int32),
        context_lens=step.positions[row : row + 1] + 1,
        block_tables=step.block_tables[seq : seq + 1],
        slot_mapping=step.slot_mapping[row : row + 1],
        logit_rows=np.arange(int(wants_logits), dtype=np.int32),
    )
