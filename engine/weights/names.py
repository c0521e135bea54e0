"""Names and shapes of a checkpoint's tensors, in Hugging Face's spelling and layout ([out, in] matrices)."""

from __future__ import annotations

from engine.models.config import ModelConfig


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this configuration must have, in the order the model uses them.

    ``lm_head.weight`` is not among them when the embeddings are tied.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.attention_bias:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_tensors(config: ModelConfig, found: dict[str, tuple[int, ...]], where: str) -> None:
    """Compare a checkpoint's names and shapes with what ``config`` needs.

    Raises:
        ValueError: a tensor is missing, has another shape, or is one that the model would not use.
    """
    wanted = tensor_shapes(config)
    ignored = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted and name not in ignored and "rotary_emb" not in name]
    wrong = [
        f"{name} {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in (
            ("tensors missing", missing),
            ("tensors the model has no use for", extra),
            ("wrong shapes", wrong),
        )
        if names
    ]
    if problems:
        raise ValueError(f"{where} does not hold a {config.model_type} checkpoint as configured: {'; '.join(problems)}")
