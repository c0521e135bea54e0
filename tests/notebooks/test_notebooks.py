"""Thirteen notebooks: each runs from a clean kernel, can measure anew under a student's seed, is committed with its outputs,
and ends with three exercises."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STUDIES = sorted(path.stem for path in (ROOT / "notebooks" / "studies").glob("*.yaml"))
MOST_DATA_BYTES = 1_000_000  # recorded data of one study


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_a_clean_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def test_there_are_thirteen_in_order() -> None:
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"{number:02}_" for number in range(13)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_reads_recorded_studies_and_can_measure_them_anew_under_a_students_seed(path: Path) -> None:
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert re.match(r"LIVE = False  # .*\nSTUDENT = None  # ", code[1])
    studies = re.findall(r"lab\.results\(([^)]*)\)", "\n".join(code))
    assert studies
    for call in studies:
        study = re.fullmatch(r'"(\w+)", live=LIVE, student=STUDENT', call)
        assert study, call
        assert (path.parent / "studies" / f"{study[1]}.yaml").is_file()
        assert (path.parent / "data" / study[1]).is_dir()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_executed_small_and_with_exercises(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code)
    assert not re.search(r'"/(home|root|work|tmp)/', path.read_text(encoding="utf-8"))
    last = notebook.cells[-1].source
    assert "## Exercises" in last
    assert len(re.findall(r"^\d\. ", last, flags=re.MULTILINE)) == 3
    assert (path.parent / "answers" / f"{path.stem}.md").is_file()


@pytest.mark.parametrize("study", STUDIES)
def test_recorded_data_are_small_and_know_no_folder_of_the_machine(study: str) -> None:
    files = [file for file in (ROOT / "notebooks" / "data" / study).rglob("*") if file.is_file()]
    assert any(file.name == "run.json" for file in files)
    assert sum(file.stat().st_size for file in files) < MOST_DATA_BYTES
    for file in files:
        if file.suffix == ".json":
            assert not re.search(r'"/(home|root|work|tmp)/', file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_has_an_answer_to_each_exercise_and_a_line_in_the_list(path: Path) -> None:
    answers = (path.parent / "answers" / f"{path.stem}.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\d\. ", answers, flags=re.MULTILINE)) == 3
    assert f"({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")
