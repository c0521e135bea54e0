"""Packed weights in the cache: the same numbers as freshly packed ones, without torch, and made again when damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.native import NativeRunner
from engine.weights.checkpoint import Checkpoint, load_checkpoint
from engine.weights.fetch import cache_folder, made
from engine.weights.packed import PackedWeights
from tests.engine.test_native import step_input

SIZES = {"num_kv_blocks": 2, "max_model_len": 64}


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Checkpoint:
    """A random model, and an empty cache folder that knows the compiled libraries of the real one."""
    (tmp_path / "native").symlink_to(made(cache_folder() / "native"))
    monkeypatch.setenv("LATENCY_LAB_CACHE", str(tmp_path))
    return load_checkpoint("random:tiny-qwen3")


def only_file(folder: Path) -> Path:
    (file,) = (folder / "packed").iterdir()
    return file


def logits(checkpoint: Checkpoint, dtype: str = "bfloat16", keep_packed: bool = True) -> np.ndarray:
    runner = NativeRunner(checkpoint, dtype=dtype, keep_packed=keep_packed, **SIZES)
    return runner.forward(step_input([1, 2, 3])).copy()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_from_the_cache_compute_the_same(checkpoint: Checkpoint, tmp_path: Path, dtype: str) -> None:
    fresh = logits(checkpoint, dtype, keep_packed=False)
    assert not (tmp_path / "packed").exists()
    assert np.array_equal(logits(checkpoint, dtype), fresh)
    written = only_file(tmp_path).stat().st_mtime_ns
    assert np.array_equal(logits(checkpoint, dtype), fresh)
    assert only_file(tmp_path).stat().st_mtime_ns == written, "found, not packed again"


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_file_is_told_and_made_again(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    fresh = logits(checkpoint)
    file = only_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert np.array_equal(logits(checkpoint), fresh)
    assert "is damaged; packing the weights again" in capsys.readouterr().err
    content[place] ^= 1
    assert file.read_bytes() == content
    file.write_bytes(content[:-1])
    assert np.array_equal(logits(checkpoint), fresh)
    assert file.read_bytes() == content


def test_other_weights_and_types_have_files_of_their_own_and_an_older_library_has_none(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def keep(fingerprint: str, dtype: str, library: str) -> None:
        PackedWeights(fingerprint, checkpoint.config, dtype, library).write(memoryview(b"weights"))

    for fingerprint, dtype, library in (("a", "bfloat16", "1"), ("b", "bfloat16", "1"), ("a", "float32", "1")):
        keep(fingerprint, dtype, library)
    assert len(list((tmp_path / "packed").iterdir())) == 3
    keep("a", "bfloat16", "2")
    assert len(list((tmp_path / "packed").iterdir())) == 3
    assert not PackedWeights("a", checkpoint.config, "bfloat16", "1").read_into(memoryview(bytearray(7)))
    found = bytearray(7)
    assert PackedWeights("a", checkpoint.config, "bfloat16", "2").read_into(memoryview(found))
    assert found == b"weights"


def test_a_cache_that_cannot_be_written_costs_time_only(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "packed").write_text("a file where the folder should be")
    assert np.isfinite(logits(checkpoint)).all()
    assert "packed weights are not kept" in capsys.readouterr().err


def test_an_engine_starts_from_the_cache_without_torch() -> None:
    script = (
        "import sys; from engine import LLM, SamplingParams; llm = LLM('smollm2-135m-instruct', num_threads=1); "
        "llm.generate('Hello', SamplingParams(max_tokens=2), use_tqdm=False); print('torch' in sys.modules)"
    )
    for _ in range(2):  # the first may have to pack
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
