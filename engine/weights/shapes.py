"""Shapes for ``random:<shape>`` models: tiny ones for tests, real ones for timing without a download."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig

PREFIX = "random:"

_TINY = ModelConfig(
    model_type="llama",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position_embeddings=4096,
    eos_token_ids=(2,),
)
_SMOLLM2 = ModelConfig(
    model_type="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_ids=(2,),
)
_QWEN3 = ModelConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rope_theta=1_000_000.0,
    max_position_embeddings=40_960,
    tie_word_embeddings=True,
    qk_norm=True,
    bos_token_id=151_643,
    eos_token_ids=(151_645,),
)
SHAPES = {
    "tiny-llama": _TINY,
    "tiny-qwen2": replace(_TINY, model_type="qwen2", attention_bias=True, tie_word_embeddings=True),
    "tiny-qwen3": replace(_TINY, model_type="qwen3", qk_norm=True, head_dim=32),
    "smollm2-135m": _SMOLLM2,
    "qwen3-0.6b": _QWEN3,
    "qwen3-8b": replace(
        _QWEN3, hidden_size=4096, intermediate_size=12_288, num_layers=36, num_heads=32, tie_word_embeddings=False
    ),
}


def is_random(model: str) -> bool:
    """Whether ``model`` names a shape with random weights."""
    return model.startswith(PREFIX)


def random_shape(model: str) -> ModelConfig:
    """The configuration of ``random:<shape>``.

    Raises:
        ValueError: no such shape; the message lists them.
    """
    name = model.removeprefix(PREFIX)
    if name not in SHAPES:
        raise ValueError(f"no shape {name!r} for random weights; shapes are {', '.join(SHAPES)}")
    return SHAPES[name]
