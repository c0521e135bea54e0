"""The shape of a decoder-only transformer, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a Llama-family model (Hugging Face's words).

    ``attention_bias`` is the bias of q, k and v (Qwen2), ``qk_norm`` the RMS norm of each query and key head (Qwen3).
    ``rope_scaling`` is Hugging Face's dictionary with ``rope_type`` in it, or ``None`` for the plain rotary embedding.
    """

    model_type: str  # llama, qwen2, qwen3
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = field(default=None)
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
