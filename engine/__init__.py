"""The inference engine. Names are exported lazily, so that torch loads only where the model runs."""

from importlib import import_module
from typing import Any

_EXPORTS = {
    "LLM": "engine.llm",
    "SamplingParams": "engine.sampling_params",
    "EngineConfig": "engine.config",
    "RequestOutput": "engine.outputs",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
