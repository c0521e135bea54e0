"""The native step against transformers and the torch path, its bitwise promise, its refusals, and how it is built."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import engine.native as native
from engine.csrc import build
from engine.model_input import ModelInput
from engine.model_runner import ModelRunner
from engine.models.config import ModelConfig
from engine.native import NativeRunner, NativeUnavailableError, kv_bytes_per_block
from engine.weights.checkpoint import Checkpoint, RandomTensors, load_folder
from tests.engine import tiny_models
from tests.engine.model_driver import Driver, check_against_oracle, oracle_logits

STEPS = 6
Tiny = Callable[[str], tuple[Any, Checkpoint]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """From a kind to a transformers model and our checkpoint of the folder it was saved to, each built once."""

    @cache
    def make(kind: str) -> tuple[Any, Checkpoint]:
        folder: Path = tmp_path_factory.mktemp(kind)
        return tiny_models.build(kind, folder), load_folder(folder, None, kind)

    return make


def prompts(lengths: tuple[int, ...], vocab: int = 384) -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocab, length).tolist() for length in lengths]


def random_checkpoint(**changes: Any) -> Checkpoint:
    """Random weights with sizes that fill neither panels nor tiles."""
    sizes = {"hidden_size": 72, "intermediate_size": 100, "vocab_size": 389, "head_dim": 16, "num_heads": 6}
    config = replace(
        ModelConfig("llama", 0, 0, 0, num_layers=2, num_heads=0, num_kv_heads=2, head_dim=0), **(sizes | changes)
    )
    return Checkpoint(config, RandomTensors(config, 1), None, None, "", "random")


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_logits_equal_transformers_in_float32(tiny: Tiny, kind: str, chunk: int) -> None:
    model, checkpoint = tiny(kind)
    runner = NativeRunner(checkpoint, num_kv_blocks=64, max_model_len=128, dtype="float32")
    driver = Driver(runner, chunk)
    starts = prompts((5, 23, 40))
    seqs = [driver.start(prompt) for prompt in starts]
    for seq, prompt, logits in zip(seqs, starts, driver.run(seqs, STEPS), strict=True):
        check_against_oracle(logits, oracle_logits(model, seq.token_ids, len(prompt)))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_bfloat16_weights_round_the_weights_and_nothing_else(tiny: Tiny, kind: str) -> None:
    """With an fp32 cache, transformers in fp32 with the same rounded matrices gives the same logits.

    On the vector path: AVX-512 BF16 rounds the activations too.
    """
    check_only_weights_are_rounded(tiny(kind)[1], "vector")


def check_only_weights_are_rounded(checkpoint: Checkpoint, instructions: str | None) -> None:
    rounded = {
        name: tensor.bfloat16().float() if tensor.dim() == 2 else tensor for name, tensor in checkpoint.tensors.items()
    }
    reference = ModelRunner(replace(checkpoint, tensors=rounded), num_kv_blocks=8, block_size=16, max_model_len=128)
    runner = NativeRunner(
        checkpoint, num_kv_blocks=8, max_model_len=128, dtype="bfloat16", kv_dtype="float32", instructions=instructions
    )
    (prompt,) = prompts((33,))
    results = []
    for one in (reference, runner):
        driver = Driver(one)
        results.append(driver.run([driver.start(prompt)], STEPS, forced=[list(range(STEPS))])[0])
    check_against_oracle(results[1], results[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 14, "num_kv_heads": 2},  # seven query heads a key/value head: rows of several tokens in a tile
        {"num_heads": 2, "num_kv_heads": 2, "head_dim": 48},
        {"num_heads": 9, "num_kv_heads": 3, "head_dim": 32, "attention_bias": True, "model_type": "qwen2"},
        {"num_heads": 2, "num_kv_heads": 1, "head_dim": 256, "qk_norm": True, "model_type": "qwen3"},
        {"hidden_size": 71, "intermediate_size": 33, "vocab_size": 17},  # odd inputs: half a pair row at the end
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
@pytest.mark.parametrize("block_size", [16, 48])
def test_any_shape_equals_the_torch_path(changes: dict[str, Any], block_size: int) -> None:
    checkpoint = random_checkpoint(**changes)
    starts = prompts((1, 16, 17, 50), checkpoint.config.vocab_size)
    results = []
    for runner in (
        ModelRunner(checkpoint, num_kv_blocks=64, block_size=16, max_model_len=128),
        NativeRunner(checkpoint, num_kv_blocks=64, block_size=block_size, max_model_len=128, dtype="float32"),
    ):
        driver = Driver(runner, chunk=9)
        results.append(driver.run([driver.start(prompt) for prompt in starts], 3, forced=[[1, 2, 3]] * len(starts)))
    for expected, got in zip(*results, strict=True):
        assert (expected - got).abs().max() <= 1e-3


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_is_bitwise_the_same_in_any_batch_and_chunk(dtype: str, threads: int) -> None:
    check_bitwise(dtype, threads, None)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [16, 32])  # 32 is what attention in AMX tiles takes
@pytest.mark.parametrize("instructions", build.INSTRUCTIONS)
def test_every_instruction_set_keeps_the_bitwise_promise(instructions: str, head_dim: int) -> None:
    if list(build.INSTRUCTIONS).index(instructions) < list(build.INSTRUCTIONS).index(build.fastest_instructions()):
        pytest.skip(f"this processor has no {instructions}")
    check_bitwise("bfloat16", 2, instructions, head_dim)


def check_bitwise(
    dtype: str, threads: int, instructions: str | None, head_dim: int = 32, quantization: str = "none"
) -> None:
    checkpoint = random_checkpoint(num_heads=6, num_kv_heads=2, head_dim=head_dim)
    starts = prompts((37, 1, 16, 20), 389)
    forced = [[7, 8, 9]] * 64

    def run(batch: list[list[int]], chunk: int, num_threads: int) -> list[torch.Tensor]:
        runner = NativeRunner(
            checkpoint,
            num_kv_blocks=400,
            max_model_len=64,
            dtype=dtype,
            num_threads=num_threads,
            instructions=instructions,
            quantization=quantization,
        )
        driver = Driver(runner, chunk)
        return driver.run([driver.start(prompt) for prompt in batch], 3, forced=forced[: len(batch)])

    alone = [run([prompt], 10_000, 1)[0] for prompt in starts]
    for batch_size, chunk in ((4, 10_000), (4, 1), (4, 7), (3, 16), (64, 5), (17, 33)):
        batch = [starts[i % len(starts)] for i in range(batch_size)]
        for i, logits in enumerate(run(batch, chunk, threads)):
            assert torch.equal(logits, alone[i % len(starts)]), f"sequence {i} of {batch_size} in chunks of {chunk}"


def step_input(tokens: list[int], block: int = 0, **changes: Any) -> ModelInput:
    """One sequence from position 0 in one block."""
    n = len(tokens)
    arrays = {
        "token_ids": tokens,
        "positions": range(n),
        "query_start": [0, n],
        "context_lens": [n],
        "block_tables": [[block]],
        "slot_mapping": [block * 16 + i for i in range(n)],
        "logit_rows": [n - 1],
    }
    return ModelInput(**{name: np.array(value, dtype=np.int32) for name, value in (arrays | changes).items()})


@pytest.mark.parametrize("head_dim", [16, 32])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_recycled_block_with_nan_does_not_reach_its_next_owner(dtype: str, head_dim: int) -> None:
    """Zero weight times NaN is NaN, so stale keys and values must not be read, or be cleared first."""
    checkpoint = random_checkpoint(head_dim=head_dim)
    poison = dict(checkpoint.tensors)
    table = poison["model.embed_tokens.weight"]
    table[300] = float("nan")
    runner = NativeRunner(replace(checkpoint, tensors=poison), num_kv_blocks=2, max_model_len=64, dtype=dtype)
    for length in (1, 2, 7, 15):
        clean = runner.forward(step_input(list(range(length)), block=1)).copy()
        assert np.isnan(runner.forward(step_input([300] * 16))).all()
        assert np.array_equal(runner.forward(step_input(list(range(length)))), clean)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"token_ids": [1, 389, 2]}, "token_ids"),
        ({"token_ids": [1, -1, 2]}, "token_ids"),
        ({"token_ids": [1, 2]}, "positions"),
        ({"positions": [0, 1, 64]}, "positions"),
        ({"query_start": [0, 2]}, "query_start"),
        ({"context_lens": [2]}, "context_lens"),
        ({"context_lens": [17]}, "context_lens"),
        ({"block_tables": [[-1]]}, "block_tables"),
        ({"block_tables": [[2]]}, "block_tables"),
        ({"slot_mapping": [0, 1, 32]}, "slot_mapping"),
        ({"logit_rows": [3]}, "logit_rows"),
        ({"logit_rows": [1, 0]}, "logit_rows"),
    ],
)
def test_an_input_out_of_range_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    runner = NativeRunner(random_checkpoint(), num_kv_blocks=2, max_model_len=64, dtype="float32")
    with pytest.raises(ValueError, match=named):
        runner.forward(step_input([1, 2, 3], **changes))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_size": 24}, "block_size is 24"),
        ({"num_kv_blocks": 0}, "num_kv_blocks is 0"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    defaults: dict[str, Any] = {"num_kv_blocks": 2, "max_model_len": 64}
    with pytest.raises(ValueError, match=named):
        NativeRunner(random_checkpoint(), **(defaults | options))


def test_a_head_size_without_a_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim is 24"):
        NativeRunner(random_checkpoint(head_dim=24), num_kv_blocks=2, max_model_len=64)


def test_rows_without_logits_and_empty_steps_are_fine() -> None:
    runner = NativeRunner(random_checkpoint(), num_kv_blocks=2, max_model_len=64, dtype="float32")
    assert runner.forward(step_input([1, 2, 3], logit_rows=[])).shape == (0, 389)
    empty = step_input([], context_lens=[], query_start=[0], block_tables=np.zeros((0, 0)), logit_rows=[])
    assert runner.forward(empty).shape == (0, 389)


def test_block_bytes_are_those_of_a_hand_calculation() -> None:
    """SmolLM2-135M: 30 layers x 3 heads x 64 x (key and value) x 2 bytes = 23,040 bytes a token."""
    config = replace(random_checkpoint().config, num_layers=30, num_kv_heads=3, head_dim=64)
    assert kv_bytes_per_block(config, 16) == 16 * 23_040
    assert kv_bytes_per_block(config, 16, "float32") == 32 * 23_040


def test_a_step_leaves_python_running(tiny: Tiny) -> None:
    """The GIL is free during a step: another thread counts while one long step computes."""
    runner = NativeRunner(tiny("llama")[1], num_kv_blocks=16, max_model_len=256, dtype="float32")
    rows = 250
    step = step_input(
        [1] * rows, block_tables=[list(range(16))], slot_mapping=list(range(rows)), logit_rows=list(range(rows))
    )
    counts, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            counts[0] += 1

    other = threading.Thread(target=count)
    other.start()
    moved = 0
    for _ in range(200):
        before = counts[0]
        runner.forward(step)
        moved += counts[0] > before
    done.set()
    other.join()
    assert moved > 0


def test_weights_of_a_draw_are_exponentials() -> None:
    runner = NativeRunner(random_checkpoint(), num_kv_blocks=1, max_model_len=16)
    row = np.random.default_rng(0).normal(scale=20, size=1003).astype(np.float32)
    row[[3, 1001]] = -np.inf
    for inverse in (1.25, 1e-3, 8e37):
        with np.errstate(over="ignore"):
            exponent = (row - row.max()) * np.float32(inverse)
        weights = runner.weigh(row, float(row.max()), inverse)
        np.testing.assert_allclose(weights, np.exp(exponent.astype(np.float64)), rtol=5e-7, atol=2e-38)
        assert weights[row.argmax()] == 1.0
        assert not weights[exponent < -87].any()


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that logs its calls and writes a file; returns the log."""
    log, script = tmp_path / "log", tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo built > "$2"; shift; done\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("LATENCY_LAB_CACHE", str(tmp_path / "cache"))
    return log


def compilations(log: Path) -> int:
    return sum("step.cpp" in line for line in log.read_text().splitlines())


def test_a_library_is_compiled_once_and_again_for_other_flags(fake_compiler: Path) -> None:
    first = build.build_library("bf16", "bf16")
    assert build.build_library("bf16", "bf16") == first
    assert compilations(fake_compiler) == 1
    assert build.build_library("bf16", "bf16", ("-g",)) != first
    assert build.build_library("fp32", "bf16") != first
    assert compilations(fake_compiler) == 3
    assert len(list(first.parent.iterdir())) == 3, "nothing half-made is left behind"


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATENCY_LAB_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailableError, match="install g\\+\\+ or clang\\+\\+, or set CXX"):
        build.build_library("bf16", "bf16")


def test_a_failing_compiler_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\necho 'step.cpp:1: no such luck' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("LATENCY_LAB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NativeUnavailableError, match="no such luck"):
        build.build_library("bf16", "bf16")
    assert not list((tmp_path / "cache" / "native").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4 -mavx512bf16", "sapphirerapids"])
def test_other_processors_build(flags: str, tmp_path: Path) -> None:
    """Plain SSE2, AVX2, AVX-512, AVX-512 BF16 and AMX compile without a warning, whatever this machine has."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("x86 flags")
    source = Path(build.__file__).parent / "step.cpp"
    command = [*build.find_compiler(), "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", *f"-march={flags}".split()]
    subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "step.o")], check=True)


@pytest.mark.slow
def test_bf16_activations_cost_little_and_keep_the_bitwise_promise(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AVX-512 BF16 path in plain vectors: logits move by less than their own spread, batch and chunk move nothing."""
    monkeypatch.setattr(
        native,
        "build_library",
        lambda *types, instructions: build.build_library(*types, ("-DLAB_BF16_ACTIVATIONS",), "vector"),
    )
    model, checkpoint = tiny("llama")
    starts = prompts((33, 5, 16))

    def run(batch: list[list[int]], chunk: int) -> list[torch.Tensor]:
        driver = Driver(NativeRunner(checkpoint, num_kv_blocks=64, max_model_len=128), chunk)
        return driver.run([driver.start(prompt) for prompt in batch], 3, forced=[[1, 2, 3]] * len(batch))

    together = run(starts, 7)
    for prompt, logits in zip(starts, together, strict=True):
        assert torch.equal(run([prompt], 10_000)[0], logits)
        expected = oracle_logits(model, [*prompt, 1, 2, 3], len(prompt))
        assert (logits - expected).abs().mean() < 0.03 * expected.std()


EMULATED_AMX = (f'-DLAB_AMX_HEADER="{Path(__file__).with_name("amx_emulated.h")}"',)


@pytest.fixture
def emulated_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path for AMX with its instructions as plain functions, so that it is computed on any processor."""
    monkeypatch.setattr(
        native, "build_library", lambda *types, instructions: build.build_library(*types, EMULATED_AMX, "vector")
    )


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_amx")
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_amx_keeps_the_bitwise_promise(quantization: str) -> None:
    check_bitwise("bfloat16", 2, None, quantization=quantization)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated_amx")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_amx_rounds_the_weights_and_nothing_else(tiny: Tiny, kind: str) -> None:
    """Activations are two bf16 each. The fp32 cache keeps attention out of the tiles, where queries have one."""
    check_only_weights_are_rounded(tiny(kind)[1], None)


SANITIZED = """
import numpy as np
from tests.engine.test_native import random_checkpoint, prompts
from tests.engine.model_driver import Driver
from engine.csrc import build
import engine.native as native
from tests.engine.test_native import EMULATED_AMX
flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")
sets = list(build.INSTRUCTIONS)
runs = [(instructions, ()) for instructions in sets[sets.index(build.fastest_instructions()):]]
for instructions, more in [*runs, ("vector", EMULATED_AMX)]:
    native.build_library = lambda *types, instructions: build.build_library(*types, (*flags, *more), instructions)
    for dtype, quantization in (("bfloat16", "none"), ("float32", "none"), ("bfloat16", "int8")):
        for head_dim in (16, 32):
            checkpoint = random_checkpoint(
                num_heads=14, vocab_size=389, head_dim=head_dim, attention_bias=True, qk_norm=True
            )
            runner = native.NativeRunner(
                checkpoint, num_kv_blocks=64, max_model_len=128, dtype=dtype, num_threads=2, instructions=instructions,
                quantization=quantization,
            )
            driver = Driver(runner, chunk=11)
            driver.run([driver.start(prompt) for prompt in prompts((1, 16, 17, 50), 389)], 3)
            runner.close()
print("clean")
"""


@pytest.mark.slow
def test_address_and_undefined_behaviour_sanitizers_are_silent() -> None:
    compiler = build.find_compiler()
    found = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    # Python itself leaks at exit by design, so leaks are not looked for.
    env = {**os.environ, "LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    result = subprocess.run([sys.executable, "-c", SANITIZED], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == "clean"
