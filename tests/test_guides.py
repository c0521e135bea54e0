"""Every Python block of the guides runs, in order, on a recorded study; every command of them is one that works."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import compare
from tests.conftest import KnownReport
from workload.experiment import load_study
from workload.run import main as run_study

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [*GUIDES, ROOT / "docs" / "extending.md"]
POINTS = {
    "hockey-stick/load=0.55": "sweep/load=0.5",
    "one-seat/load=0.7": "one-seat/load=0.5",
}  # ours: of the known study


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def here(known_report: KnownReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it after a study: the studies of the repository, and results."""
    (tmp_path / "results").mkdir()
    for name in ("results/experiments", "A/experiments", "B/experiments"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(known_report.folder)
    shutil.copy(ROOT / "experiments.yaml", tmp_path)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_blocks_run_in_order(page: Path, here: Path) -> None:
    names: dict[str, object] = {"__name__": "guide"}
    found = blocks(page, "python")
    assert found
    for block in found:
        for documented, ours in POINTS.items():
            block = block.replace(documented, ours)
        exec(compile(block, str(page), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_studies_are_valid_and_the_commands_work(
    page: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(page, "yaml"):
        (here / "STUDY.yaml").write_text(block)
        assert load_study(here / "STUDY.yaml", models=list(compare.MODELS)).runs
    for module, arguments in commands(page):
        if module == "workload.run":
            assert run_study([*arguments, "--dry-run"]) == 0
        else:
            assert module == "analysis.compare"
            assert compare.main(arguments) == 0
        assert capsys.readouterr().out


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    for block in blocks(page, "sh"):
        for line in block.strip().splitlines():
            python, flag, module, *arguments = shlex.split(line, comments=True)
            assert (python, flag) == ("python", "-m")
            yield module, arguments


def test_every_question_of_the_index_has_its_guide() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert {f"guides/{page.name}" for page in GUIDES} == set(re.findall(r"\((guides/\w+\.md)\)", index))
