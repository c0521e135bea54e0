"""Checks engine options of a study against EngineConfig, so that a misspelt option is found before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from engine.config import ALIASES, EngineConfig
from workload.schema import SpecError, did_you_mean, shown

ELSEWHERE = {
    "model": "the model is given at the top of the study",
    "seed": "the engine's seed comes from the study's seed, new in every replication",
}


def engine_option_names() -> list[str]:
    """The options that a study may set."""
    return [field.name for field in fields(EngineConfig) if field.name not in ELSEWHERE]


def check_engine_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` under EngineConfig's own names.

    Raises:
        SpecError: an unknown option, a value of the wrong type or out of range.
    """
    names = engine_option_names()
    hints = get_type_hints(EngineConfig)
    resolved: dict[str, Any] = {}
    for key, value in options.items():
        name = ALIASES.get(key, key)
        if name in ELSEWHERE:
            raise SpecError((key,), f"not allowed here: {ELSEWHERE[name]}", at_key=True)
        if name not in names:
            raise SpecError((key,), f"unknown engine option {key!r}; {did_you_mean(key, names)}", at_key=True)
        if name in resolved:
            raise SpecError((key,), f"{key!r} and {name!r} are the same option; give one", at_key=True)
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError:
            kind = str(hints[name]).replace("<class '", "").replace("'>", "")
            raise SpecError((key,), f"found {shown(value)}; allowed: {kind}") from None
        resolved[name] = value
    try:
        EngineConfig(**resolved)
    except ValueError as error:
        about = str(error).split(" ", 1)[0]
        keys = [key for key in options if ALIASES.get(key, key) == about]
        raise SpecError(keys[:1], str(error)) from None
    return resolved
