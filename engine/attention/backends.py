"""The attention back ends by name."""

from __future__ import annotations

from typing import Any

from engine.attention.base import AttentionBackend
from engine.attention.reference import ReferenceAttention
from engine.attention.sdpa import SdpaAttention

BACKENDS: dict[str, type[AttentionBackend[Any]]] = {kind.name: kind for kind in (SdpaAttention, ReferenceAttention)}


def make_backend(name: str) -> AttentionBackend[Any]:
    """The back end called ``name``.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in BACKENDS:
        raise ValueError(f"no attention back end {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]()
