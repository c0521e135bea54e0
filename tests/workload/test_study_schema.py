"""The schema and the reference page that are kept are those of the code, and the schema agrees with the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from workload.arrivals import PROCESSES
from workload.engine_options import engine_option_names
from workload.experiment import load_study
from workload.study_schema import main, reference_page, study_json_schema

ROOT = Path(__file__).resolve().parents[2]


def test_the_files_kept_are_what_the_command_writes(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    for name in ("experiments.schema.json", "experiments.md"):
        kept = (ROOT / "docs" / name).read_text()
        assert kept == (tmp_path / name).read_text(), f"run: python -m workload.study_schema docs ({name} is old)"


def test_every_process_and_engine_option_is_on_the_page() -> None:
    page = reference_page()
    assert all(f"`process: {name}`" in page for name in PROCESSES)
    assert all(f"| `{name}` |" in page for name in engine_option_names())


STUDIES = sorted([ROOT / "experiments.yaml", *(ROOT / "experiments").glob("*.yaml")])


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_the_studies_of_the_repository_satisfy_loader_and_schema(path: Path, traces: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(json.dumps(YAML(typ="safe").load(path))), study_json_schema())
    assert load_study(path).runs


ARRIVALS: list[tuple[dict[str, Any], bool]] = [
    ({"process": "poisson", "load": [0.3, 0.8]}, True),
    ({"process": "poisson", "load": {"of": "one", "value": [0.5, 0.8]}}, True),
    ({"process": ["poisson", "constant"], "rate": 3}, True),
    ({"process": "closed", "clients": 3, "think": {"dist": "exponential", "mean": [1, 2]}}, True),
    ({"process": "sessions", "rate": 3, "turns": 4, "think": 1.5}, True),
    ({"process": "mmpp", "rates": [1, 9], "sojourn": [3, 4], "load": 0.5}, True),
    ([{"process": "poisson", "rate": 1}, {"process": "gamma", "rate": 1, "cv": 2}], True),
    ({"process": "poisson", "rate": 0}, False),
    ({"process": "poisson", "rat": 1}, False),
    ({"process": "poisso", "rate": 1}, False),
    ({"process": "gamma", "rate": 1}, False),
    ({"process": "closed", "clients": 3, "load": [0.3, 0.7]}, True),
    ({"process": "closed", "clients": 0}, False),
]


@pytest.mark.parametrize(("arrivals", "good"), ARRIVALS, ids=lambda value: json.dumps(value))
def test_schema_and_loader_accept_and_refuse_the_same(tmp_path: Path, arrivals: Any, good: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    study = {
        "version": 1,
        "model": "m",
        "experiments": [{"name": "one", "arrivals": arrivals, "measure": {"seconds": 3}, "prompt": 5, "output": 6}],
    }
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))  # JSON is YAML
    validator = jsonschema.Draft202012Validator(study_json_schema())
    assert validator.is_valid(study) is good
    if good:
        assert load_study(path).runs
    else:
        with pytest.raises(ValueError, match=r"study\.yaml:1"):
            load_study(path)
