"""The attention back ends by name. What a name needs is imported when it is asked for."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from engine.attention.base import AttentionBackend

BACKENDS = {
    "sdpa": "engine.attention.sdpa:SdpaAttention",
    "reference": "engine.attention.reference:ReferenceAttention",
    "triton": "engine.attention.triton:TritonAttention",
    "flash_attn": "engine.attention.flash_attn:FlashAttention",
}
_PACKAGES = {"triton": ("triton",), "flash_attn": ("flash_attn", "triton")}


def missing_packages(name: str) -> tuple[str, ...]:
    """The packages that the back end ``name`` needs and that are not installed."""
    return tuple(package for package in _PACKAGES.get(name, ()) if find_spec(package) is None)


def backend_class(name: str) -> type[AttentionBackend[Any]]:
    """The class of the back end called ``name``.

    Raises:
        ValueError: there is none (the message lists those there are), or a package that it needs is missing or broken.
    """
    if name not in BACKENDS:
        raise ValueError(f"no attention back end {name!r}; there are {', '.join(BACKENDS)}")
    missing = missing_packages(name)
    if missing:
        raise ValueError(
            f"attention {name} needs {' and '.join(missing)}: pip install {' '.join(missing)}, or take sdpa"
        )
    module, kind = BACKENDS[name].split(":")
    try:
        found: type[AttentionBackend[Any]] = getattr(import_module(module), kind)
    except ImportError as error:
        raise ValueError(f"attention {name} cannot be had here ({error}); take sdpa") from error
    return found


def check_device(name: str, device: str) -> None:
    """Raise ValueError where the back end ``name`` cannot run on ``device`` (cpu or cuda)."""
    if device == "cpu" and name == "flash_attn":
        raise ValueError("attention flash_attn wants a GPU; on a CPU take sdpa")
    if device == "cpu" and name == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            "attention triton wants a GPU (on a CPU only TRITON_INTERPRET=1 runs it, for tests); take sdpa"
        )


def make_backend(name: str, group: int = 1) -> AttentionBackend[Any]:
    """The back end called ``name`` for ``group`` query heads to a key-value head.

    Raises:
        ValueError: as ``backend_class``.
    """
    return backend_class(name)(group)


def choose_backend(device: str, head_dim: int, block_size: int | str, dtype: str) -> tuple[str, str]:
    """What ``attention: auto`` takes on ``device`` (cpu or cuda), and why: the fastest that fits."""
    if device == "cpu":
        return "sdpa", "the fastest on a CPU"
    reasons = []
    for name in ("flash_attn", "triton"):
        try:
            kind = backend_class(name)
            kind.check(kind.default_block_size if block_size == "auto" else int(block_size), head_dim, dtype)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return name, "; ".join(reasons) or "the fastest that is installed"
    return "sdpa", "; ".join(reasons)
