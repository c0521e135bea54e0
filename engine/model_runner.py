"""Holds the model and its key-value cache and computes a step's logits with torch, on a CPU or a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backends import make_backend
from engine.attention.base import AttentionBackend, DecodeBuffers
from engine.cuda_graphs import DecodeGraphs
from engine.layers.operators import make_operators
from engine.model_input import ModelInput
from engine.models.config import ModelConfig
from engine.models.llama import LlamaForCausalLM, Placement
from engine.parallel import WHOLE, TensorParallel, check_shares
from engine.transfer import to_device
from engine.weights.checkpoint import Checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ModelRunner:
    """``forward(step)``: from rows of tokens to logits, the cache updated on the way.

    Args:
        checkpoint: the weights.
        num_kv_blocks: blocks of the key-value cache; ``None`` leaves it to a later ``allocate``.
        block_size: tokens to a block; the back end must support it.
        max_model_len: longest sequence, at most what the model was made for; ``None`` takes that.
        attention: name of the attention back end.
        dtype: float32, bfloat16 or float16, of weights, activations and cache.
        device: cpu or cuda.
        operators: who computes the small operators: torch, triton or compile.
        parallel: this rank's share of the model.

    Raises:
        ValueError: a size or name that does not fit; the message says what would.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        num_kv_blocks: int | None,
        block_size: int = 16,
        max_model_len: int | None = None,
        attention: str = "sdpa",
        dtype: str = "float32",
        device: str = "cpu",
        operators: str = "torch",
        parallel: TensorParallel = WHOLE,
    ) -> None:
        config = checkpoint.config
        self.attention: AttentionBackend[Any] = make_backend(attention, config.num_heads // config.num_kv_heads)
        self.attention.check(block_size, config.head_dim)
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not supported; supported are {', '.join(DTYPES)}")
        limit = config.max_position_embeddings
        if max_model_len is not None and not 1 <= max_model_len <= limit:
            raise ValueError(f"max_model_len is {max_model_len}; {checkpoint.source} takes 1 to {limit}")
        check_shares(config, parallel.size)
        self.config = config
        self.block_size = block_size
        self.max_model_len = limit if max_model_len is None else max_model_len
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]
        self.parallel = parallel
        self.graphs: DecodeGraphs | None = None
        with torch.inference_mode():
            place = Placement(self.dtype, self.device, parallel, make_operators(operators))
            self.model = LlamaForCausalLM(config, self.max_model_len, place)
            self.model.load(checkpoint.tensors)
        self.num_kv_blocks = 0
        if num_kv_blocks is not None:
            self.allocate(num_kv_blocks)

    @torch.inference_mode()
    def allocate(self, num_kv_blocks: int) -> None:
        """Make the key-value cache."""
        if num_kv_blocks < 1:
            raise ValueError(f"num_kv_blocks is {num_kv_blocks}; it must be at least 1")
        self.num_kv_blocks = num_kv_blocks
        self.cache = torch.zeros(self.cache_shape(num_kv_blocks), dtype=self.dtype, device=self.device)

    def cache_shape(self, num_kv_blocks: int) -> tuple[int, ...]:
        """Layers, keys and values, slots, this rank's key-value heads, ``head_dim``."""
        heads = self.parallel.share(self.config.num_kv_heads)
        return (self.config.num_layers, 2, num_kv_blocks * self.block_size, heads, self.config.head_dim)

    @torch.inference_mode()
    def capture_graphs(self, max_num_seqs: int) -> None:
        """Capture decode steps of up to ``max_num_seqs`` rows in CUDA graphs (on a CPU: run them from the same static
        buffers, which is for tests)."""
        width = -(-self.max_model_len // self.block_size)
        self.graphs = DecodeGraphs(max_num_seqs, width, self.config.vocab_size, self.device)
        self.graphs.capture(self._decode_rows)

    def forward(self, step: ModelInput) -> NDArray[np.float32]:
        """float32 logits [R, vocab] of ``step.logit_rows``."""
        return self.logits(step).cpu().numpy()

    @torch.inference_mode()
    def logits(self, step: ModelInput) -> Tensor:
        """As ``forward``, on the device, which need not have finished; good until the next call."""
        if self.attention.one_row_at_a_time:
            wanted = set(step.logit_rows.tolist())
            return torch.cat([self._eager(one_row(step, row, row in wanted)) for row in range(len(step.token_ids))])
        if self.graphs is not None and self.graphs.takes(step):
            return self.graphs.replay(step)
        return self._eager(step)

    def _eager(self, step: ModelInput) -> Tensor:
        metadata = self.attention.prepare(step, self.block_size, self.device)
        token_ids, positions, rows = to_device((step.token_ids, step.positions, step.logit_rows), self.device)
        return self.model(token_ids, positions, rows, self.cache, self.attention, metadata)

    def _decode_rows(self, buffers: DecodeBuffers) -> Tensor:
        metadata = self.attention.prepare_decodes(buffers, self.block_size)
        return self.model(buffers.token_ids, buffers.positions, None, self.cache, self.attention, metadata)


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
