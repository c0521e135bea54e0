"""The Triton kernels on a CPU: in the interpreter against the formula, and compiled for an H200 without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from engine.attention.base import AttentionBackend
from tests.engine.test_attention import step_of

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: pip install triton (240 MB), or -e '.[triton]'"
)
ROOT = Path(__file__).parents[2]


def run(*arguments: str, interpreted: bool = True) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_kernels_equal_the_formula_in_the_interpreter() -> None:
    assert " passed" in run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/engine/kernel_cases.py")


@pytest.mark.slow
def test_the_kernels_equal_the_formula_in_every_shape() -> None:
    assert " passed" in run(
        "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", "tests/engine/kernel_cases.py"
    )


@pytest.mark.slow
def test_an_engine_on_the_kernels_and_on_static_buffers_gives_the_tokens_of_the_safe_one() -> None:
    run("-m", "tests.engine.interpreted_engine")


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h200() -> None:
    assert run("-m", "tests.engine.compile_kernels", interpreted=False).count("compiled") >= 20


def test_chunks_are_cut_into_tiles_the_longest_context_first() -> None:
    from engine.attention.triton import prefill_tiles

    seqs, firsts = prefill_tiles(np.array([1, 33, 1, 16, 2]), 16)
    assert seqs.tolist() == [1, 1, 1, 3, 4]
    assert firsts.tolist() == [32, 16, 0, 0, 0]
    nothing = prefill_tiles(np.array([1, 1]), 16)
    assert [len(part) for part in nothing] == [0, 0]
    counts = np.diff(step_of([0, 3], [40, 1], 16).query_start)
    assert prefill_tiles(counts, 64)[0].tolist() == [0]


def test_contexts_are_split_only_while_the_device_has_room() -> None:
    from engine.attention.triton import num_splits

    assert num_splits(8, 1 << 20, 64, 132) == 32
    assert num_splits(256, 1 << 20, 64, 132) == 2
    assert num_splits(2048, 1 << 20, 64, 132) == 1
    assert num_splits(8, 128, 64, 132) == 2
    assert num_splits(8, 10, 64, 132) == 1


def test_the_kernels_are_a_back_end_with_limits_of_its_own() -> None:
    from engine.attention.backends import backend_class

    kind: type[AttentionBackend] = backend_class("triton")
    kind.check(7, 80, "float16")
    with pytest.raises(ValueError, match="16 to 256"):
        kind.check(16, 512)
