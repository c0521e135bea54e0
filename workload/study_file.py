"""Reading a study's YAML so that every mistake can be told with its file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from workload.schema import SpecError, dotted


class StudyError(ValueError):
    """A mistake in a study file, told in one line: file, line, key, what was found, what is allowed."""


class StudyFile:
    """The parsed YAML of one file: plain values in ``data``, and the line of every key.

    Raises:
        StudyError: the file can't be read or is no YAML mapping.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise StudyError(f"{self.path}: can't read the study: {reason}") from None
        try:
            self._tree = YAML(typ="rt").load(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            problem = " ".join(str(error.problem or error.context or error).split())
            raise StudyError(f"{self.path}{line}: not valid YAML: {problem}") from None
        except YAMLError as error:
            raise StudyError(f"{self.path}: not valid YAML: {' '.join(str(error).split())}") from None
        except ValueError as error:  # a tag such as !!int on what is none
            raise StudyError(f"{self.path}: not valid YAML: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise StudyError(f"{self.path}: can't read the study: it is nested too deeply") from None
        if not isinstance(self._tree, CommentedMap):
            kinds = {type(None): "nothing", CommentedSeq: "a list"}
            found = kinds.get(type(self._tree), "a single value")
            raise StudyError(f"{self.path}:1: found {found}; a study is a mapping with the key 'experiments'")
        try:
            self.data: dict[str, Any] = plain(self._tree)
        except SpecError as error:
            raise self.error(error) from None

    def error(self, error: SpecError) -> StudyError:
        """``error`` with the file and line of its key."""
        problem = f"{dotted(error.path)}: {error.problem}" if error.path else error.problem
        return StudyError(f"{self.path}:{self.line(error.path)}: {problem}")

    def line(self, path: Sequence[str | int]) -> int:
        """The 1-based line of the key at ``path``, or of the nearest one above it that is written in the file."""
        node, line = self._tree, int(self._tree.lc.line)
        for part in path:
            found = _line_in(node, part)
            if found is None:
                break
            line = found
            node = node[part]
        return line + 1


def plain(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """ruamel's round-trip values as plain Python ones, merge keys resolved.

    Raises:
        SpecError: a value has a tag of its own (``!include``), which would be dropped here.
    """
    tag = getattr(value, "tag", None)
    if tag is not None and tag.value is not None:
        raise SpecError(
            path,
            f"found the YAML tag {str(tag.value).replace('tag:yaml.org,2002:', '!!')}; tags have no meaning in a study",
        )
    if isinstance(value, Mapping):
        return {_scalar(key): plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, (*path, index)) for index, item in enumerate(value)]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, ScalarBoolean):  # a true or false with an anchor, which is an int to Python
        return bool(value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _line_in(node: Any, part: str | int) -> int | None:
    """The 0-based line where ``node`` (or what it merges in) writes the key or item ``part``."""
    if isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
        return int(node.lc.data[part][0])
    if not isinstance(node, CommentedMap) or part not in node:
        return None
    if node.lc.data is not None and part in node.lc.data:
        return int(node.lc.data[part][0])
    for merged in node.merge or ():
        found = _line_in(merged, part)
        if found is not None:
            return found
    return None
