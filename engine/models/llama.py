"""The Llama family: Llama, Qwen2 (bias on q, k and v) and Qwen3 (RMS norm of each query and key head).

All new tokens of a step are the rows of one flat batch [T, hidden]; only attention knows which sequence a row belongs
to. Layout and names follow Hugging Face, with q, k, v merged into one matrix and gate and up into another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from engine.attention.base import AttentionBackend, AttentionMetadata
from engine.layers.embed_head import TokenEmbedding
from engine.layers.layernorm import RMSNorm
from engine.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine.layers.operators import Operators
from engine.layers.rotary_embedding import RotaryEmbedding
from engine.models.config import ModelConfig
from engine.parallel import WHOLE, TensorParallel

Tensors = Mapping[str, Tensor]
_PLAIN = Operators()


@dataclass(frozen=True)
class Placement:
    """How the model's parts are made: number format, device, the rank's share, and who computes the small operators."""

    dtype: torch.dtype
    device: torch.device
    parallel: TensorParallel = WHOLE
    operators: Operators = _PLAIN

    def norm(self, size: int, eps: float) -> RMSNorm:
        return RMSNorm(size, eps, self.dtype, self.device, self.operators)


class LlamaAttention(nn.Module):
    """Projections, head norms and rotation around the attention back end."""

    def __init__(self, config: ModelConfig, place: Placement) -> None:
        super().__init__()
        self.config = config
        self.operators = place.operators
        self.num_heads = place.parallel.share(config.num_heads)
        self.num_kv_heads = place.parallel.share(config.num_kv_heads)
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size, (queries, keys, keys), config.attention_bias, place.dtype, place.device, place.parallel
        )
        self.o_proj = RowParallelLinear(queries, config.hidden_size, place.dtype, place.device, place.parallel)
        if config.qk_norm:
            self.q_norm = place.norm(config.head_dim, config.rms_norm_eps)
            self.k_norm = place.norm(config.head_dim, config.rms_norm_eps)

    def load(self, tensors: Tensors, prefix: str) -> None:
        names = [f"{prefix}.{name}_proj" for name in ("q", "k", "v")]
        biases = [tensors[f"{name}.bias"] for name in names] if self.config.attention_bias else []
        self.qkv_proj.load([tensors[f"{name}.weight"] for name in names], biases)
        self.o_proj.load(tensors[f"{prefix}.o_proj.weight"])
        if self.config.qk_norm:
            self.q_norm.load(tensors[f"{prefix}.q_norm.weight"])
            self.k_norm.load(tensors[f"{prefix}.k_norm.weight"])

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: Tensor,
        attention: AttentionBackend[Any],
        metadata: AttentionMetadata,
    ) -> Tensor:
        rows, heads, kv_heads = x.shape[0], self.num_heads, self.num_kv_heads
        qkv = self.qkv_proj(x).view(rows, heads + 2 * kv_heads, self.config.head_dim)
        if self.config.qk_norm:
            query, key, value = self.operators.normalize_and_rotate_heads(
                qkv, self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, rotation, heads, kv_heads
            )
        else:
            query, key, value = self.operators.rotate_heads(qkv, rotation, heads, kv_heads)
        attended = attention.forward(query, key, value, cache, metadata)
        return self.o_proj(attended.reshape(rows, -1))


class LlamaMLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: ModelConfig, place: Placement) -> None:
        super().__init__()
        self.operators = place.operators
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = ColumnParallelLinear(
            hidden, (inner, inner), False, place.dtype, place.device, place.parallel
        )
        self.down_proj = RowParallelLinear(inner, hidden, place.dtype, place.device, place.parallel)

    def load(self, tensors: Tensors, prefix: str) -> None:
        self.gate_up_proj.load([tensors[f"{prefix}.gate_proj.weight"], tensors[f"{prefix}.up_proj.weight"]])
        self.down_proj.load(tensors[f"{prefix}.down_proj.weight"])

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.operators.silu_and_mul(self.gate_up_proj(x)))


class LlamaLayer(nn.Module):
    """Norm, attention, norm, feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, place: Placement) -> None:
        super().__init__()
        self.input_layernorm = place.norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, place)
        self.post_attention_layernorm = place.norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config, place)

    def load(self, tensors: Tensors, prefix: str) -> None:
        self.input_layernorm.load(tensors[f"{prefix}.input_layernorm.weight"])
        self.self_attn.load(tensors, f"{prefix}.self_attn")
        self.post_attention_layernorm.load(tensors[f"{prefix}.post_attention_layernorm.weight"])
        self.mlp.load(tensors, f"{prefix}.mlp")

    def forward(
        self,
        x: Tensor,
        residual: Tensor,
        rotation: tuple[Tensor, Tensor],
        cache: Tensor,
        attention: AttentionBackend[Any],
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """``x`` is what the previous layer adds to ``residual``; returns the same pair for the next one."""
        x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, rotation, cache, attention, metadata)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class LlamaForCausalLM(nn.Module):
    """The whole decoder.

    Args:
        config: the shape.
        max_positions: longest sequence the rotary table covers.
        place: number format, device, share and operators.
    """

    def __init__(self, config: ModelConfig, max_positions: int, place: Placement) -> None:
        super().__init__()

        def table() -> TokenEmbedding:
            return TokenEmbedding(config.vocab_size, config.hidden_size, place.dtype, place.device, place.parallel)

        self.embed_tokens = table()
        self.rotary = RotaryEmbedding(config, max_positions, place.dtype, place.device)
        self.layers = nn.ModuleList(LlamaLayer(config, place) for _ in range(config.num_layers))
        self.norm = place.norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = self.embed_tokens if config.tie_word_embeddings else table()

    def load(self, tensors: Tensors) -> None:
        """Copy a checkpoint's tensors, converted to this model's dtype."""
        self.embed_tokens.load(tensors["model.embed_tokens.weight"])
        for index, layer in enumerate(self.layers):
            cast(LlamaLayer, layer).load(tensors, f"model.layers.{index}")
        self.norm.load(tensors["model.norm.weight"])
        if self.lm_head is not self.embed_tokens:
            self.lm_head.load(tensors["lm_head.weight"])

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        logit_rows: Tensor | None,
        cache: Tensor,
        attention: AttentionBackend[Any],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """float32 logits [R, vocab] of the rows ``logit_rows`` [R]; ``None`` is all of them.

        Args:
            token_ids, positions: int32 or int64 [T].
            cache: [layers, 2, slots, kv_heads, head_dim], written in place.
        """
        x: Tensor = self.embed_tokens(token_ids)
        rotation = self.rotary(positions)
        residual = torch.zeros_like(x)
        for layer, layer_cache in zip(self.layers, cache.unbind(0), strict=True):
            x, residual = layer(x, residual, rotation, layer_cache, attention, metadata)
        if logit_rows is not None:
            x, residual = x.index_select(0, logit_rows), residual.index_select(0, logit_rows)
        x, _ = self.norm.add(x, residual)
        return self.lm_head.logits(x)
