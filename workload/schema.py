"""What every typed part of a study has in common: frozen models that refuse unknown keys, and errors written for people.

A mistake is a :class:`SpecError` that names the key, what was found and what is allowed (with a suggestion where a name was
nearly right). ``experiment.py`` adds the file and the line.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Path = tuple[str | int, ...]


class SpecError(ValueError):
    """A mistake in one part of a study. ``path`` is the key it is about, as the parts of a path from the top."""

    def __init__(self, path: Sequence[str | int], problem: str, *, at_key: bool = False) -> None:
        self.path: Path = tuple(path)
        self.problem = problem
        self.at_key = at_key  # the mistake is the key's name, not its value
        super().__init__(f"{dotted(self.path)}: {problem}" if self.path else problem)

    def under(self, where: Sequence[str | int]) -> SpecError:
        """The same mistake seen from further up."""
        return SpecError((*where, *self.path), self.problem, at_key=self.at_key)


class Spec(BaseModel):
    """Base of every model of a study: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _plain_number(value: Any) -> Any:
    """Text and true/false are not numbers, although Python would take them."""
    if isinstance(value, bool | str):
        raise ValueError("a number is allowed")
    return value


def _plain_switch(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("true or false is allowed")
    return value


Number = Annotated[float, BeforeValidator(_plain_number)]
Positive = Annotated[float, BeforeValidator(_plain_number), Field(gt=0)]
NonNegative = Annotated[float, BeforeValidator(_plain_number), Field(ge=0)]
Unit = Annotated[float, BeforeValidator(_plain_number), Field(ge=0, le=1)]
Count = Annotated[int, BeforeValidator(_plain_number), Field(ge=1)]
Whole = Annotated[int, BeforeValidator(_plain_number), Field(ge=0)]
Switch = Annotated[bool, BeforeValidator(_plain_switch)]

SpecT = TypeVar("SpecT", bound=Spec)


def dotted(path: Sequence[str | int]) -> str:
    """``("experiments", 0, "arrivals", "rate")`` as ``experiments[0].arrivals.rate``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def did_you_mean(found: object, allowed: Sequence[str]) -> str:
    """``did you mean 'rate'? allowed: rate, load``, or only the second half where nothing is near."""
    lowered = {name.lower(): name for name in allowed}
    text = str(found).lower()
    near = difflib.get_close_matches(text, list(lowered), n=1)
    near = near or [name for name in lowered if len(text) > 2 and name.startswith(text)]
    hint = f"did you mean {lowered[near[0]]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(allowed)}"


def validate(model: type[SpecT], data: Any, where: Sequence[str | int] = ()) -> SpecT:
    """``data`` as an instance of ``model``.

    Raises:
        SpecError: the first mistake, a misspelt key before anything it may have caused.
    """
    if isinstance(data, model):
        return data
    if not isinstance(data, Mapping):
        raise SpecError(
            where, f"found {shown(data)}; a mapping is allowed, with the keys {', '.join(key_names(model))}"
        )
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        raise _spec_error(model, dict(details[0])).under(where) from None


def parse_tagged(
    models: Mapping[str, type[SpecT]], tag: str, data: Any, where: Sequence[str | int] = (), default: str | None = None
) -> SpecT:
    """``data`` as the one of ``models`` that its key ``tag`` names (``process: poisson``)."""
    if isinstance(data, Spec) and type(data) in models.values():
        return typing.cast(SpecT, data)
    if not isinstance(data, Mapping):
        raise SpecError(where, f"found {shown(data)}; a mapping with the key '{tag}' is allowed")
    name = data.get(tag, default)
    if name is None:
        raise SpecError(where, f"the key '{tag}' is missing; allowed: {', '.join(models)}")
    if name not in models:
        raise SpecError((*where, tag), f"found {shown(name)}; {did_you_mean(name, list(models))}")
    return validate(models[name], data, where)


def key_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def shown(value: Any, limit: int = 60) -> str:
    """``value`` as an error message shows it: short, on one line."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _spec_error(model: type[BaseModel], detail: Mapping[str, Any]) -> SpecError:
    path = tuple(part for part in detail["loc"] if part != "[key]")  # pydantic's mark of a mistake in a mapping's key
    kind, found = detail["type"], shown(detail.get("input"))
    if kind == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        return SpecError(path, f"unknown key {path[-1]!r}; {did_you_mean(path[-1], key_names(owner))}", at_key=True)
    if kind == "missing" and isinstance(path[-1], int):  # a list that is too short, [seconds, rate] say
        return SpecError(path[:-1], f"found {found}; a list of at least {path[-1] + 1} values is allowed")
    if kind == "missing":
        owner = _model_at(model, path[:-1])
        return SpecError(path[:-1], f"the key {path[-1]!r} is missing; keys here: {', '.join(key_names(owner))}")
    if kind == "literal_error":
        allowed = [part.strip().strip("'") for part in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        at_key = "[key]" in detail["loc"]
        return SpecError(path, f"found {found}; {did_you_mean(detail.get('input'), allowed)}", at_key=at_key)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = f", with the keys {', '.join(key_names(_model_at(model, path)))}" if kind != "dict_type" else ""
        return SpecError(path, f"found {found}; a mapping is allowed{keys}")
    if kind == "value_error":
        error = detail["ctx"]["error"]
        if isinstance(error, SpecError):  # of a law inside, which knows its own key
            return error.under(path)
        problem = str(error)
        return SpecError(path, problem if isinstance(detail.get("input"), Mapping) else f"found {found}; {problem}")
    return SpecError(path, f"found {found}; {_allowed(kind, detail)}", at_key="[key]" in detail["loc"])


def _allowed(kind: str, detail: Mapping[str, Any]) -> str:
    """What pydantic would have taken, in our words where its own are a programmer's."""
    if kind == "too_short":
        return f"allowed: a list of at least {detail['ctx']['min_length']} values"
    if kind == "too_long":
        return f"allowed: a list of at most {detail['ctx']['max_length']} values"
    if kind in ("int_from_float", "int_type", "int_parsing"):
        return "allowed: a whole number"
    if kind == "string_pattern_mismatch":
        return "allowed: letters, digits and . _ - , a letter or digit first"
    text = str(detail["msg"]).replace("Input should be", "allowed:")
    for theirs, ours in (("a valid tuple", "a list"), ("a valid list", "a list"), ("a valid string", "text")):
        text = text.replace(theirs, ours)
    return text.replace("a valid number", "a number")


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The model that holds the key at ``path``, walking into nested models."""
    for part in path:
        field = model.model_fields.get(str(part)) or next(
            (field for field in model.model_fields.values() if field.alias == part), None
        )
        nested = _nested_model(field.annotation) if field is not None else None
        model = nested or model
    return model


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    for argument in typing.get_args(annotation):
        nested = _nested_model(argument)
        if nested is not None:
            return nested
    return None
