"""Every notebook runs from a clean kernel, is committed with its outputs, and ends with three exercises."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_DATA_BYTES = 300_000  # recorded data of one notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_a_clean_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


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
    data = [file for file in (path.parent / "data" / path.stem).rglob("*") if file.is_file()]
    assert data
    assert sum(file.stat().st_size for file in data) < MOST_DATA_BYTES
