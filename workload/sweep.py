"""Sweeps: every list that stands where one value belongs is an axis; the points are their product, or a zip.

Works on plain YAML values, before they are typed, and remembers where each value was written, so that a mistake in the third
value of a list is reported on that value's line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workload.schema import Path, SpecError

# How deep lists may nest before they mean a sweep, for the keys whose own value is a list.
LIST_DEPTH: dict[str, int] = {
    "rates": 1,
    "sojourn": 1,
    "generator": 2,
    "profile": 2,
    "window": 1,
    "times": 1,
    "columns": 1,
}
TAGS = ("process", "dist", "kind", "from")  # keys that name a variant: the label of a swept mapping


@dataclass(frozen=True)
class Section:
    """One part of a run's description (arrivals, engine, prompt ...) as plain values, with where each was written.

    ``origin`` is the path of the section in the file; ``origins`` overrides it key by key, as engine options come from two
    places.
    """

    value: Any
    origin: Path
    origins: Mapping[str, Path] = field(default_factory=dict)

    def locate(self, path: Sequence[str | int]) -> Path:
        if path and str(path[0]) in self.origins:
            return (*self.origins[str(path[0])], *path[1:])
        return (*self.origin, *path)


@dataclass(frozen=True)
class Axis:
    """One swept value: ``path`` inside ``section``, and the values it takes."""

    section: str
    path: Path
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Point:
    """One combination: the sections with a single value everywhere, and its label (empty where nothing is swept)."""

    label: str
    sections: Mapping[str, Any]
    picks: tuple[tuple[Axis, int], ...]

    def locate(self, sections: Mapping[str, Section], name: str, path: Sequence[str | int]) -> Path:
        """Where the value at ``path`` of section ``name`` is written: inside the list, where it was swept."""
        for axis, index in self.picks:
            if axis.section == name and tuple(path[: len(axis.path)]) == axis.path:
                path = (*axis.path, index, *path[len(axis.path) :])
                break
        return sections[name].locate(path)


def find_axes(sections: Mapping[str, Section]) -> list[Axis]:
    """Every list that is one level too deep for its key."""
    axes: list[Axis] = []

    def walk(name: str, value: Any, path: Path) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(name, item, (*path, key))
        elif isinstance(value, list):
            own = LIST_DEPTH.get(str(path[-1]), 0) if path else 0
            if _depth(value) > own:
                if not value:
                    raise SpecError(
                        sections[name].locate(path),
                        "found an empty list; a value, or a list of values to sweep, is allowed",
                    )
                axes.append(Axis(name, path, tuple(value)))

    for name, section in sections.items():
        walk(name, section.value, ())
    return axes


def expand(sections: Mapping[str, Section], zipped: bool, where: Path) -> list[Point]:
    """All points of a sweep, in the order of the file (the last axis fastest).

    Raises:
        SpecError: lists of unequal length under ``zip: true``, or a value twice on one axis.
    """
    axes = find_axes(sections)
    lengths = [len(axis.values) for axis in axes]
    if zipped and not axes:
        raise SpecError((*where, "zip"), "found true, but nothing is swept; give lists of values, or leave zip out")
    if zipped and len(set(lengths)) > 1:
        found = ", ".join(f"{axis_name(axis, axes)}: {len(axis.values)}" for axis in axes)
        raise SpecError((*where, "zip"), f"found lists of unequal length ({found}); lists of one length are allowed")
    ranges = [range(length) for length in lengths]
    combinations = list(zip(*ranges, strict=True)) if zipped else list(itertools.product(*ranges))
    points: list[Point] = []
    seen: set[str] = set()
    for combination in combinations:
        picks = tuple(zip(axes, combination, strict=True))
        label = ",".join(f"{axis_name(axis, axes)}={value_label(axis, index)}" for axis, index in picks)
        if label in seen:
            raise SpecError(
                sections[axes[0].section].locate(axes[0].path),
                f"the point {label} is there twice; distinct values are allowed",
            )
        seen.add(label)
        values = {name: section.value for name, section in sections.items()}
        for axis, index in picks:
            values[axis.section] = _replaced(values[axis.section], axis.path, axis.values[index])
        points.append(Point(label, values, picks))
    return points


def axis_name(axis: Axis, axes: Sequence[Axis]) -> str:
    """The key of the axis, with its section in front where another axis has the same key."""
    keys = [part for part in axis.path if part != "value"] or [axis.section]
    twin = any(other is not axis and other.path[-1:] == axis.path[-1:] for other in axes)
    names = [axis.section, *keys[-1:]] if twin and axis.path else keys[-1:]
    return ".".join(map(str, names))


def value_label(axis: Axis, index: int) -> str:
    """A short folder-safe text for one value of an axis."""
    value = axis.values[index]
    if isinstance(value, Mapping):
        for tag in TAGS:
            tags = [item.get(tag) if isinstance(item, Mapping) else None for item in axis.values]
            if tags[index] is not None and tags.count(tags[index]) == 1:
                return folder_safe(tags[index])
        return str(index)
    if isinstance(value, list):
        return str(index)
    return folder_safe(value)


def folder_safe(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip(".-") or "-"


def _depth(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return 1 + max((_depth(item) for item in value), default=0)


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    return {key: _replaced(item, path[1:], new) if key == path[0] else item for key, item in value.items()}
