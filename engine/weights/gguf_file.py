"""Reads a GGUF file (llama.cpp's format) and writes it once as a Hugging Face folder of float32 tensors.

Torch-free. What differs from Hugging Face's layout: names; the q and k rows of the ``llama`` architecture, which
llama.cpp stores for its interleaved rotary embedding; quantized blocks, dequantized here by the ``gguf`` package;
the frequency factors of Llama 3, stored as a tensor instead of four numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.weights.fetch import cache_folder, made, say, scratch_folder, sha256_of
from engine.weights.hf_config import MODEL_TYPES, config_from_hf, config_to_hf
from engine.weights.names import check_tensors

FORMAT = 1  # raise it when what is written here changes, so that no older folder is taken for it
_SHARD_BYTES = 2 << 30

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"


def prepare_gguf(locate: Callable[[], Path], key: str) -> Path:
    """The prepared folder of a GGUF file in the cache, written the first time.

    ``locate`` gives the file and is called only when it must be read; ``key`` names its content. Safe when two
    processes ask at once.
    """
    target = cache_folder() / "prepared" / f"{key}-v{FORMAT}"
    if target.is_dir():
        return target
    made(target.parent, writable=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if target.is_dir():
            return target
        path = locate()
        say(f"{path.name}: dequantizing once into {target}")
        with scratch_folder(target.parent, f".{target.name}-") as scratch:
            folder = scratch / "folder"
            folder.mkdir()
            write_folder(path, folder)
            folder.rename(target)
    return target


def write_folder(path: Path, folder: Path) -> None:
    """Write the GGUF file ``path`` as config.json, tokenizer.json, safetensors, chat template and prepared.json."""
    from engine.weights.gguf_tokenizer import build_tokenizer

    reader = _open(path)
    fields = {name: field.contents for name, field in reader.fields.items()}
    config = read_config(reader, fields, path)
    (folder / "config.json").write_text(json.dumps(config_to_hf(config), indent=2))
    build_tokenizer(fields, str(path)).save(str(folder / "tokenizer.json"))
    if "tokenizer.chat_template" in fields:
        (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"](), encoding="utf-8")
    found = {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in _named(reader, path)}
    check_tensors(config, found, str(path))
    _write_shards(folder, ((name, _to_hf(tensor, name, config)) for name, tensor in _named(reader, path)))
    (folder / "prepared.json").write_text(
        json.dumps({"source": path.name, "sha256": sha256_of(path), "format": FORMAT})
    )


def read_config(reader: Any, fields: dict[str, Callable[[], Any]], path: Path) -> ModelConfig:
    """The :class:`ModelConfig` that the metadata describes.

    Raises:
        ValueError: an architecture or rotary embedding that is not supported, or metadata missing.
    """
    arch = fields["general.architecture"]()
    if arch not in MODEL_TYPES:
        raise ValueError(f"{path}: architecture {arch!r} is not supported; supported are {', '.join(MODEL_TYPES)}")

    def value(key: str, default: Any = None) -> Any:
        field = fields.get(f"{arch}.{key}")
        if field is None and default is None:
            raise ValueError(f"{path} lacks the metadata {arch}.{key}")
        return default if field is None else field()

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    heads, hidden = value("attention.head_count"), value("embedding_length")
    head_dim = value("attention.key_length", hidden // heads)
    if value("rope.dimension_count", head_dim) != head_dim:
        raise ValueError(f"{path}: rotary embedding over a part of each head is not supported")
    if arch != "qwen2" and "blk.0.attn_q.bias" in tensors:
        raise ValueError(f"{path}: attention biases are supported for qwen2 only, not {arch}")
    theta = float(value("rope.freq_base", 10_000.0))
    rope: dict[str, Any] = {"rope_theta": theta, "rope_type": value("rope.scaling.type", "none")}
    if rope["rope_type"] == "none":
        rope["rope_type"] = "default"
    else:
        rope["factor"] = value("rope.scaling.factor")
    if rope["rope_type"] == "yarn":
        rope["original_max_position_embeddings"] = value("rope.scaling.original_context_length")
    if _ROPE_FACTORS in tensors:
        factors = np.asarray(tensors[_ROPE_FACTORS].data, dtype=np.float64)
        rope = {"rope_theta": theta} | _llama3_scaling(factors, theta, head_dim, path)
    eos = fields.get("tokenizer.ggml.eos_token_id")
    bos = fields.get("tokenizer.ggml.bos_token_id")
    return config_from_hf(
        {
            "model_type": arch,
            "vocab_size": int(tensors["token_embd.weight"].shape[1]),
            "hidden_size": hidden,
            "intermediate_size": value("feed_forward_length"),
            "num_hidden_layers": value("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": value("attention.head_count_kv", heads),
            "head_dim": head_dim,
            # Stored as float32: 9.999999747e-06 is 1e-05, which a model trained with 1e-05 computes in float32 too.
            "rms_norm_eps": float(np.format_float_positional(np.float32(value("attention.layer_norm_rms_epsilon")))),
            "rope_parameters": rope,
            "max_position_embeddings": value("context_length"),
            "tie_word_embeddings": "output.weight" not in tensors,
            "bos_token_id": bos() if bos else None,
            "eos_token_id": eos() if eos else None,
        },
        str(path),
    )


def _llama3_scaling(factors: NDArray[np.float64], theta: float, head_dim: int, path: Path) -> dict[str, Any]:
    """The four numbers behind llama.cpp's frequency factors, checked by computing the factors from them again."""
    scaling = {"factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    length = 8192
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((length / wavelengths - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1.0 - blend) / scaling["factor"] + blend)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ValueError(f"{path}: {_ROPE_FACTORS} is not Llama 3's rotary scaling; other factors are not supported")
    return {"rope_type": "llama3", "original_max_position_embeddings": length} | scaling


def _open(path: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(path)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise ValueError(f"{path} is not a readable GGUF file: {error}") from error


def _named(reader: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """The file's tensors under Hugging Face names."""
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        if tensor.name in _TOP_NAMES:
            yield _TOP_NAMES[tensor.name], tensor
            continue
        parts = tensor.name.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _BLOCK_NAMES:
            raise ValueError(f"{path}: tensor {tensor.name!r} belongs to no supported model")
        yield f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}", tensor


def _to_hf(tensor: Any, name: str, config: ModelConfig) -> NDArray[np.float32]:
    """Dequantized, and with the q and k rows of llama in Hugging Face's order."""
    from gguf import dequantize

    array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        return np.ascontiguousarray(unpermute(array, array.shape[0] // config.head_dim))
    return array


def unpermute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's interleaving: per head, rows (0, 1, 2, 3, ...) become (0, 2, 4, ..., 1, 3, 5, ...)."""
    out, columns = rows.shape
    return rows.reshape(num_heads, out // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(out, columns)


def _write_shards(folder: Path, tensors: Iterator[tuple[str, NDArray[np.float32]]]) -> None:
    """Write safetensors files of at most about 2 GiB, so that a large model is never in memory whole."""
    from safetensors.numpy import save_file

    shards: list[list[str]] = []
    batch: dict[str, NDArray[np.float32]] = {}

    def flush() -> None:
        save_file(batch, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(batch))
        batch.clear()

    for name, array in tensors:
        if batch and sum(held.nbytes for held in batch.values()) + array.nbytes > _SHARD_BYTES:
            flush()
        batch[name] = array
    flush()
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"shard-{index}").rename(folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
