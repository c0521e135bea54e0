"""Hugging Face's ``config.json`` to and from :class:`ModelConfig`, refusing what the models here do not compute.

Understands both spellings of the rotary embedding: ``rope_theta`` with ``rope_scaling`` (transformers 4) and
``rope_parameters`` (transformers 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.config import ModelConfig

MODEL_TYPES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ROPE_KEYS = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
}
# Keys that some configurations carry for information; they change nothing for the rope types above.
_ROPE_IGNORED = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}


def config_from_hf(hf: Mapping[str, Any], where: str) -> ModelConfig:
    """The :class:`ModelConfig` of a parsed ``config.json``; ``where`` names the file in errors.

    Raises:
        ValueError: an architecture, activation, bias, window or rope type that is not supported; the message lists
            what is.
    """
    model_type = hf.get("model_type")
    if model_type not in MODEL_TYPES:
        raise ValueError(f"{where}: model_type {model_type!r} is not supported; supported are {', '.join(MODEL_TYPES)}")
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        if not isinstance(hf.get(key), int) or hf[key] < 1:
            raise ValueError(f"{where}: {key} is {hf.get(key)!r}; it must be a positive integer")
    activation = hf.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"{where}: hidden_act {activation!r} is not supported; only silu is")
    if hf.get("mlp_bias"):
        raise ValueError(f"{where}: mlp_bias is not supported")
    if hf.get("attention_bias") and model_type != "qwen2":
        raise ValueError(f"{where}: attention_bias puts a bias on the output projection too, which is not supported")
    if hf.get("use_sliding_window"):
        raise ValueError(f"{where}: use_sliding_window is not supported; only full attention is")
    if hf.get("quantization_config"):
        raise ValueError(f"{where}: quantized checkpoints are not supported (GGUF files are: they are dequantized)")
    heads = int(hf["num_attention_heads"])
    kv_heads = hf.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(f"{where}: {heads} query heads cannot share {kv_heads} key-value heads evenly")
    theta, scaling = _rope(hf, where)
    head_dim = hf.get("head_dim") or (128 if model_type == "qwen3" else hf["hidden_size"] // heads)
    eos = hf.get("eos_token_id")
    return ModelConfig(
        model_type=model_type,
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        intermediate_size=hf["intermediate_size"],
        num_layers=hf["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=hf.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=hf.get("max_position_embeddings", 2048),
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        attention_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        bos_token_id=hf.get("bos_token_id"),
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    )


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """A ``config.json`` that transformers (5 and later) and :func:`config_from_hf` read back to the same model."""
    classes = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    eos = config.eos_token_ids
    return {
        "architectures": [classes[config.model_type]],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta} | (config.rope_scaling or {}),
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else list(eos),
        "dtype": "float32",
    }


def _rope(hf: Mapping[str, Any], where: str) -> tuple[float, dict[str, Any] | None]:
    """Base frequency and scaling dictionary (``None`` for the plain rotary embedding)."""
    parameters = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta", hf.get("rope_theta", 10_000.0)))
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise ValueError(f"{where}: rope_type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError(f"{where}: partial_rotary_factor other than 1 is not supported")
    if rope_type == "default":
        return theta, None
    required, optional = _ROPE_KEYS[rope_type]
    scaling = {key: value for key, value in parameters.items() if key not in _ROPE_IGNORED and value is not None}
    missing = [key for key in required if key not in scaling]
    unknown = [key for key in scaling if key not in required + optional]
    if missing or unknown:
        raise ValueError(f"{where}: rope_type {rope_type!r} lacks {missing} and has unknown keys {unknown}")
    return theta, {"rope_type": rope_type} | scaling
