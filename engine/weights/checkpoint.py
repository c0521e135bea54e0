"""A model's weights in memory: Hugging Face names and layout, whatever they came from.

Torch is loaded when the first tensor is asked for: an engine that finds its weights packed in the cache needs none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from engine.models.config import ModelConfig
from engine.weights.names import check_tensors, tensor_shapes
from engine.weights.presets import model_folder, read_chat_template, read_folder_config
from engine.weights.shapes import is_random, random_shape

if TYPE_CHECKING:
    import torch

_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """Weights with what is needed to use them.

    Attributes:
        config: the model's shape.
        tensors: every tensor of :func:`engine.weights.names.tensor_shapes`, matrices as [out, in], in the dtype of
            the source (float32 from GGUF files and random shapes). Read lazily: a tensor takes memory once it is used.
        tokenizer_path: tokenizer.json, or ``None`` for random weights.
        chat_template: Jinja text, or ``None``.
        fingerprint: hexadecimal digest that identifies the weights.
        source: where they came from, for people.
    """

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    tokenizer_path: Path | None
    chat_template: str | None = field(repr=False)
    fingerprint: str
    source: str


class RandomTensors(Mapping[str, "torch.Tensor"]):
    """Seeded weights, made when asked for and not kept, so that a large shape needs no second copy. Drawn on ``device`` (cpu
    or cuda), whose generator decides the values.

    Norms are one and biases small; matrices are normal with variance 1 / columns, which keeps activations near unit
    size, and embeddings are standard normal. A tensor depends on its name, its shape and the seed
    only.
    """

    def __init__(self, config: ModelConfig, seed: int, device: str = "cpu") -> None:
        self._shapes = tensor_shapes(config)
        self._seed = seed
        self._device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        import torch

        shape = self._shapes[name]
        if "norm" in name:
            return torch.ones(shape)
        seed = int.from_bytes(hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:8], "little") >> 1
        values = torch.randn(shape, generator=torch.Generator(self._device).manual_seed(seed), device=self._device)
        if name.endswith(".bias"):
            return values.mul_(0.1)
        return values if "embed" in name else values.mul_(shape[1] ** -0.5)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class FolderTensors(Mapping[str, "torch.Tensor"]):
    """The tensors ``names`` of safetensors ``files``, mapped, not read, when the first of them is asked for."""

    def __init__(self, files: list[Path], names: Iterable[str]) -> None:
        self._files = files
        self._names = dict.fromkeys(names)

    @cached_property
    def _tensors(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        found: dict[str, torch.Tensor] = {}
        for file in self._files:
            found |= load_file(file)
        return {name: found[name] for name in self._names}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_checkpoint(model: str, seed: int = 0, device: str = "cpu") -> Checkpoint:
    """Load ``model``: a preset, a folder, a GGUF file, a hub id or ``random:<shape>`` (drawn from ``seed`` on ``device``).

    Raises:
        ValueError: no such model, or one that the engine does not support; the message says what is.
    """
    if is_random(model):
        config = random_shape(model)
        drawn_by = "" if device == "cpu" else f" {device}"
        fingerprint = hashlib.sha256(f"{model} {seed} {config}{drawn_by}".encode()).hexdigest()
        return Checkpoint(config, RandomTensors(config, seed, device), None, None, fingerprint, model)
    return load_folder(model_folder(model), read_chat_template(model), model)


def load_folder(folder: Path, chat_template: str | None, source: str) -> Checkpoint:
    """Load a Hugging Face folder; of its safetensors files only the names and shapes are read here."""
    from safetensors import safe_open

    config = read_folder_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors file; other weight files (*.bin, *.pt) are not read")
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    check_tensors(config, found, str(folder))
    tensors = FolderTensors(files, tensor_shapes(config))
    tokenizer = folder / "tokenizer.json"
    return Checkpoint(
        config, tensors, tokenizer if tokenizer.exists() else None, chat_template, _fingerprint(folder, files), source
    )


def _fingerprint(folder: Path, files: list[Path]) -> str:
    """The digest of a prepared folder's source; else of config.json and each weight file's size, start, middle, end."""
    prepared = folder / "prepared.json"
    if prepared.exists():
        return str(json.loads(prepared.read_text())["sha256"])
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as data:
            for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                data.seek(start)
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()
