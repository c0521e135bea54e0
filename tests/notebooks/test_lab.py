"""What the notebooks share: studies that load, seeds from names, and a clear word about a study that does not exist."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from workload.experiment import load_study

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "notebooks" / "studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_lab", ROOT / "notebooks" / "lab.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_loads_under_the_name_of_its_file(path: Path) -> None:
    study = load_study(path)
    assert study.name == path.stem
    assert study.experiments


def test_a_name_gives_the_same_seed_on_every_machine(lab: ModuleType) -> None:
    assert lab.seed_of("Ada") == int(hashlib.sha256(b"Ada").hexdigest()[:8], 16)
    assert lab.seed_of("Ada") != lab.seed_of("Agner")


def test_the_recorded_copy_is_found_and_a_study_that_does_not_exist_is_named(lab: ModuleType) -> None:
    assert lab.results("batching") == ROOT / "notebooks" / "data" / "batching"
    with pytest.raises(ValueError, match=r"no study 'batchin'; there are batching, bursts"):
        lab.results("batchin")


def test_what_is_recorded_is_measured_again_under_the_students_seed(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(lab.subprocess, "run", lambda command, **_: commands.append(command))
    folder = lab.results("bursts", live=True, student="Ada", simulate=True)
    assert folder.parts[-2:] == ("bursts-Ada-simulated", "bursts")
    assert commands[0][commands[0].index("--seed") + 1] == str(lab.seed_of("Ada"))
    assert commands[0][commands[0].index("--calibration") + 1] == str(ROOT / "notebooks" / "data" / "bursts")
    assert "--simulate" in commands[0]
