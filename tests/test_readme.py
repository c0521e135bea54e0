"""Every Python block of the README runs, and every command it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workload.experiment import load_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_block_on_reading_a_run_runs(smoke_results: Path) -> None:
    (block,) = (block for block in blocks("python") if "open_run" in block)
    there = str(smoke_results / "batching" / "load=0.6" / "0")
    block = block.replace("results/experiments/hockey-stick/load=0.55/0", there)
    names: dict[str, object] = {}
    exec(block, names)
    assert "run" in names


def test_the_block_on_the_engine_alone_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("python") if "LLM(" in block)
    exec(block, {})
    assert "Paris" in capsys.readouterr().out


def test_the_study_in_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = blocks("yaml")
    path = tmp_path / "study.yaml"
    path.write_text(block)
    assert [run.point for run in load_study(path).runs] == ["load=0.3", "load=0.55", "load=0.8"]


def test_the_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", README))
    assert named
    assert named <= targets | {"and"}
