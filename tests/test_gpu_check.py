"""benchmarks/gpu_check.py without a GPU: its table, its bounds, and (slow) a dry run of every part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_parts import REAL, kv_bytes, matrix_parameters, weight_bytes, workload
from engine.weights.shapes import random_shape


def test_the_workload_is_nano_vllms() -> None:
    """256 requests, prompts and outputs uniform on 100 to 1,024: means of 562 within 4 standard errors (267 / 16 each)."""
    requests = workload(REAL, 256)
    assert len(requests) == 256
    for lengths in ([len(prompt) for prompt, _ in requests], [outputs for _, outputs in requests]):
        assert 100 <= min(lengths) <= max(lengths) <= 1024
        assert abs(sum(lengths) / 256 - 562) < 4 * 267 / 16
    assert requests == workload(REAL, 256)


def test_the_bandwidth_bound_counts_what_a_step_reads() -> None:
    """Qwen3-8B: 6.95 G parameters in the layers' matrices and 0.62 G in the head; 147,456 bytes of keys and values a
    token."""
    shape = random_shape("random:qwen3-8b")
    assert matrix_parameters(shape) == 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12_288)
    assert weight_bytes(shape, 2) == 2 * (matrix_parameters(shape) + 151_936 * 4096)
    assert kv_bytes(shape, 2) == 147_456


def test_rows_are_lines_and_a_part_that_was_killed_keeps_those_it_had(tmp_path: Path) -> None:
    row = {"what": "8B decode", "value": 5.25, "unit": "ms", "share": 0.741, "of": "bound 3.9 ms", "eager_ms": 9.0}
    assert " ".join(gpu_check.line(row).split()) == "8B decode 5.25 ms 74.1% of bound 3.9 ms; eager 9.00 ms"
    assert "-" in gpu_check.line({"what": "flash_attn", "value": None, "unit": "", "of": "not installed"})
    path = tmp_path / "rows"
    with path.open("a") as file:
        gpu_check.write_row(file, row)
        file.write('\n{"what": "cut o')
        gpu_check.write_row(file, row)
    assert gpu_check.read_rows(path) == [row, row]
    state = gpu_check.run_in_process("tests", path, dry=True, seconds=gpu_check.LEAST_S)
    assert state.startswith("out of time")  # the part has LEAST_S, pytest in it nothing


def test_parts_fit_into_eight_minutes_and_a_slow_one_starves_none() -> None:
    """Every part takes all that it may: the next still has its own seconds, and the end is before the limit."""
    parts = list(gpu_check.PARTS)
    assert sum(part.seconds for part in gpu_check.PARTS.values()) <= gpu_check.TOTAL_S < 480
    left = gpu_check.TOTAL_S
    for i, part in enumerate(parts):
        may = gpu_check.allowance(parts[i:], left)
        assert may >= gpu_check.PARTS[part].seconds
        left -= may
    assert left == 0.0
    assert gpu_check.allowance(parts[-1:], 100.0) == 100.0  # what the others have left over


def test_every_part_has_an_outcome_in_table_and_file_also_where_it_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first part eats all the time; one lacks a package."""
    now = iter([0.0, 0.0, 1000.0, *[1000.0] * 100])
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: next(now))
    real = gpu_check.run_in_process
    monkeypatch.setattr(
        gpu_check,
        "run_in_process",
        lambda part, *rest: "failed with exit code 1" if part == "limits" else real(part, *rest),
    )
    monkeypatch.setattr(gpu_check, "find_spec", lambda name: None if name == "transformers" else name)
    out = tmp_path / "check.json"
    assert gpu_check.main(["--out", str(out)]) == 1
    parts = {part: each["state"] for part, each in json.loads(out.read_text())["parts"].items()}
    assert list(parts) == list(gpu_check.PARTS)
    assert parts.pop("limits") == "failed with exit code 1"
    assert parts.pop("peer") == "not run: without transformers"
    assert set(parts.values()) == {"not run: out of time"}
    said = capsys.readouterr().out
    assert said.startswith("peer cannot run here: not run: without transformers")
    assert all(f"\n{part} ({each.what}): " in said for part, each in gpu_check.PARTS.items())


PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
import benchmarks.gpu_check, benchmarks.gpu_parts, tests.conftest, tests.gpu.test_gpu, engine.parallel_worker
llm = benchmarks.gpu_parts.make_engine(benchmarks.gpu_parts.DRY, "random:tiny-qwen3", attention="sdpa")
print(benchmarks.gpu_parts.throughput_row(llm, "all", [([1, 2, 3], 4)])["of"])
"""


def test_it_needs_of_the_projects_packages_only_what_it_says() -> None:
    project = tomllib.loads((gpu_check.ROOT / "pyproject.toml").read_text())["project"]
    modules = {"ruamel.yaml": "ruamel", "hdrhistogram": "hdrh"}
    packages = [re.split("[><=]", each)[0] for each in project["dependencies"]]
    absent = {modules.get(package, package) for package in packages} - {*gpu_check.ENGINE_NEEDS, "safetensors"}
    assert {"pydantic", "ruamel", "gguf", "simpy", "hdrh", "scipy", "pandas", "psutil", "transformers"} <= absent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *absent], cwd=gpu_check.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "4 tokens in" in done.stdout


def test_without_a_gpu_a_part_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert gpu_check.run_part("limits", tmp_path / "rows", dry=False, seconds=10.0) == gpu_check.NO_GPU


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton (240 MB)")
def test_a_dry_run_goes_through_every_part(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    assert gpu_check.main(["--dry", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert {part: each["state"] for part, each in report["parts"].items()} == dict.fromkeys(gpu_check.PARTS, "done")
    names = " ".join(row["what"] for row in report["rows"])
    for expected in (
        "copy bandwidth",
        "decode, 3 rows",
        "prefill",
        "host overhead",
        "nano-vllm",
        "transformers",
        "sdpa",
    ):
        assert expected in names
    assert report["dry"]
