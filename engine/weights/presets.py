"""From what the user calls a model to files: preset, folder, GGUF file, hub id or ``random:<shape>``.

Torch-free, so that a process that needs only the tokenizer or the shape (the load generator) starts fast. Every
kind but ``random`` ends as a Hugging Face folder: config.json, tokenizer.json, *.safetensors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engine.models.config import ModelConfig
from engine.weights.fetch import PRESETS, cache_folder, fetch_preset
from engine.weights.gguf_file import prepare_gguf
from engine.weights.hf_config import config_from_hf
from engine.weights.shapes import is_random, random_shape


def check_model(model: str) -> None:
    """Whether ``model`` names something; nothing is fetched or read, a hub id is taken at its word.

    Raises:
        ValueError: no such preset, shape, folder or file; the message lists what can be given.
    """
    if is_random(model):
        random_shape(model)
    elif model not in PRESETS:
        _local(model)


def model_folder(model: str) -> Path:
    """The Hugging Face folder of ``model``; fetched and converted the first time.

    Raises:
        ValueError: no such preset, folder, file or hub repository; the message lists what can be given.
    """
    if is_random(model):
        raise ValueError(f"{model} has random weights and no folder")
    if model in PRESETS:
        preset = PRESETS[model]
        return prepare_gguf(lambda: fetch_preset(preset), f"{preset.name}-{preset.gguf_sha256[:12]}")
    path = _local(model)
    if path is None:
        return _from_hub(model)
    if path.is_dir():
        return path
    stat = path.stat()
    return prepare_gguf(lambda: path, f"{path.stem}-{stat.st_size:x}-{stat.st_mtime_ns:x}")


def _local(model: str) -> Path | None:
    """The folder or GGUF file that ``model`` names; None for a hub id.

    Raises:
        ValueError: it is none of these.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ValueError(
                f"{path} has no config.json; a model folder holds config.json, tokenizer.json and *.safetensors"
            )
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{path} is a file but not a .gguf one")
        return path
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model) and not model.endswith(".gguf"):
        return None
    raise ValueError(
        f"no model {model!r}: give a preset ({', '.join(PRESETS)}), an existing folder with config.json, a .gguf file, "
        f"a hub id (owner/name) or random:<shape>"
    )


def resolve_tokenizer(model: str) -> Path:
    """The tokenizer.json of ``model``.

    Raises:
        ValueError: the model has none (``random:<shape>``, or a folder without the file).
    """
    if is_random(model):
        raise ValueError(
            f"{model} has no tokenizer: give prompts as token ids (0 to {random_shape(model).vocab_size - 1})"
        )
    folder = model_folder(model)
    if not (folder / "tokenizer.json").exists():
        raise ValueError(f"{folder} has no tokenizer.json; save the tokenizer there with transformers' save_pretrained")
    return folder / "tokenizer.json"


def read_model_config(model: str) -> ModelConfig:
    """The shape of ``model``, without its weights."""
    if is_random(model):
        return random_shape(model)
    return read_folder_config(model_folder(model))


def read_folder_config(folder: Path) -> ModelConfig:
    """config.json, with the end tokens of generation_config.json where that names some (as transformers does)."""
    hf = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    if generation.get("eos_token_id") is not None:
        hf["eos_token_id"] = generation["eos_token_id"]
    return config_from_hf(hf, str(folder / "config.json"))


def read_chat_template(model: str) -> str | None:
    """The Jinja chat template of ``model``, or ``None`` where it has none."""
    if is_random(model):
        return None
    folder = model_folder(model)
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.jinja"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds, all meaning "not available"
        raise ValueError(
            f"cannot get {model!r} from the hub ({type(error).__name__}: {str(error).splitlines()[0]}). "
            f"Where there is network, run:  hf download {model} --local-dir FOLDER  and give FOLDER as the model "
            f"(here the cache is {cache_folder()})"
        ) from error
