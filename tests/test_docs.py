"""Every link of the documents leads somewhere; every file, module, command, option and column they name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from analysis.runs import SCHEMAS
from workload.run import _parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            there = document.parent / path if path else document
            assert there.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.+)$", text_of(there), flags=re.MULTILINE)
                assert anchor in {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_module_that_is_named_exists(document: Path) -> None:
    text = text_of(document)
    for path in re.findall(
        r"\b(?:engine|workload|analysis|notebooks|benchmarks|tests|docs)/[\w./]*\w\.(?:py|md|ipynb)\b", text
    ):
        assert (ROOT / path).exists(), path
    for folder in re.findall(r"`((?:engine|workload|analysis|notebooks|benchmarks|docs)/[\w/]*)`", text):
        assert (ROOT / folder).is_dir(), folder
    for module in re.findall(r"python -m ([a-z_.]+\w)", text):
        assert importlib.util.find_spec(module) is not None, module
    for module in re.findall(r"^from ((?:engine|workload|analysis)[\w.]*) import", text, flags=re.MULTILINE):
        assert importlib.util.find_spec(module) is not None, module


def test_every_option_of_the_main_command_that_is_named_exists() -> None:
    known = {option for action in _parser()._actions for option in action.option_strings}
    named = {
        option
        for document in (ROOT / "README.md", ROOT / "docs" / "measurement.md", ROOT / "docs" / "architecture.md")
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text_of(document))
    }
    assert {"--simulate", "--calibration", "--dry-run"} <= named
    assert named <= known | {"--models", "--csv"}  # of analysis.compare


def test_every_column_of_every_table_is_defined_in_the_metrics() -> None:
    words = set(re.findall(r"`(\w+)`", text_of(ROOT / "docs" / "metrics.md")))
    for table, schema in SCHEMAS.items():
        assert table in words
        assert set(schema.names) - {"token_ids"} <= words, table
