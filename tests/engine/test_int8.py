"""int8 weights: what a plain computation with the same rounded weights gives, whatever the instructions; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.csrc import build
from engine.model_runner import ModelRunner
from engine.native import NativeRunner
from engine.weights.checkpoint import Checkpoint
from tests.engine.model_driver import Driver, check_against_oracle
from tests.engine.test_native import check_bitwise, prompts, random_checkpoint, step_input

AVAILABLE = list(build.INSTRUCTIONS)[list(build.INSTRUCTIONS).index(build.fastest_instructions()) :]


def rounded(checkpoint: Checkpoint) -> Checkpoint:
    """Every matrix in steps of max |w| / 127 of its row; the embedding table in bfloat16 where it is looked up."""

    def steps(matrix: torch.Tensor) -> torch.Tensor:
        scale = matrix.abs().amax(dim=1, keepdim=True) / 127
        return (matrix / scale).round() * scale

    tensors = {
        name: steps(tensor) if tensor.dim() == 2 and "embed" not in name else tensor
        for name, tensor in checkpoint.tensors.items()
    }
    tensors["model.embed_tokens.weight"] = checkpoint.tensors["model.embed_tokens.weight"].bfloat16().float()
    return replace(checkpoint, tensors=tensors)


def logits(runner: Any, chunk: int = 9) -> list[torch.Tensor]:
    driver = Driver(runner, chunk)
    starts = prompts((1, 16, 17, 40), 389)
    return driver.run([driver.start(prompt) for prompt in starts], 3, forced=[[1, 2, 3]] * len(starts))


@pytest.mark.parametrize(
    "instructions",
    [AVAILABLE[0], *(pytest.param(each, marks=pytest.mark.slow) for each in AVAILABLE[1:])],
)
def test_int8_rounds_the_weights_and_nothing_else(instructions: str) -> None:
    """Activations have two digits, so against the same weights in fp32 (and an fp32 cache) hardly anything is left."""
    checkpoint = random_checkpoint(attention_bias=True, model_type="qwen2")
    options: dict[str, Any] = {"num_kv_blocks": 64, "max_model_len": 128}
    expected = logits(ModelRunner(rounded(checkpoint), block_size=16, **options))
    got = logits(
        NativeRunner(checkpoint, quantization="int8", kv_dtype="float32", instructions=instructions, **options)
    )
    plain = logits(NativeRunner(checkpoint, dtype="float32", **options))
    for each, reference, unrounded in zip(got, expected, plain, strict=True):
        check_against_oracle(each, reference)
        assert (each - unrounded).abs().mean() > 10 * (each - reference).abs().mean(), "the weights were rounded"


@pytest.mark.parametrize("threads", [1, 2])
def test_an_int8_request_is_bitwise_the_same_in_any_batch_and_chunk(threads: int) -> None:
    check_bitwise("bfloat16", threads, None, quantization="int8")


def test_no_number_stays_no_number() -> None:
    """An int8 cannot say NaN: the row's scale does."""
    checkpoint = random_checkpoint()
    poison = dict(checkpoint.tensors)
    poison["model.embed_tokens.weight"][300] = float("nan")
    runner = NativeRunner(replace(checkpoint, tensors=poison), num_kv_blocks=2, max_model_len=64, quantization="int8")
    assert np.isfinite(runner.forward(step_input([1, 2]))).all()
    assert np.isnan(runner.forward(step_input([300]))).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backend": "torch"}, "backend is 'torch'; with it it must be auto or native"),
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"attention": "sdpa"}, "attention is 'sdpa'"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2"),
        ({"quantization": "int4"}, "quantization is 'int4'; it must be one of none, int8"),
    ],
)
def test_what_int8_does_not_go_with_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EngineConfig(**{"quantization": "int8"} | options)


def test_without_the_native_step_int8_is_refused_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.executors.model import make_model_executor

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"quantization 'int8' needs the native step .*no-such-compiler"):
        make_model_executor(EngineConfig(model="random:tiny-llama", quantization="int8", num_threads=1))
