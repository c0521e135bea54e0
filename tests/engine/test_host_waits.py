"""What a step must not do on a device: ask for a number inside a layer or a draw, or build its metadata more than once.

On a CPU such a question costs nothing and shows nowhere, so the operations behind it are caught as they are dispatched;
tests/gpu asks CUDA itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.attention.base import AttentionBackend
from engine.config import EngineConfig
from engine.layers.device_logits import Adjustments, adjusted, log_probabilities
from engine.layers.device_sampler import SamplingInput, sample_on_device
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from tests.engine.device_engine import device_core, device_runner
from tests.engine.test_attention import CASES, step_of

CONFIG = EngineConfig(
    model="random:tiny-qwen3", backend="torch", device="cpu", num_threads=1, num_kv_blocks=600, block_size=16,
    max_num_seqs=8, max_num_batched_tokens=32, max_model_len=512,
)  # fmt: skip


class NoWaiting(TorchDispatchMode):
    """Raises where an operation's result, or the size of it, would have to come to the host first."""

    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        waits = name in self.ASKING
        if name in (
            "index",
            "index_put",
            "index_put_",
        ):  # a mask is first turned into positions, whose number is asked for
            waits = any(each is not None and each.dtype == torch.bool for each in args[1])
        if func is torch.ops.aten.repeat_interleave.Tensor:
            waits = not (kwargs or {}).get("output_size")
        if waits:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def test_what_waits_is_caught() -> None:
    x = torch.ones(3)
    for waiting in (lambda: x.sum().item(), lambda: x[x > 0], lambda: bool((x > 0).all()), lambda: x.unique()):
        with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
            waiting()


@pytest.mark.parametrize("case", list(CASES))
def test_no_layer_waits(case: str) -> None:
    runner = device_runner(CONFIG)
    step = step_of(*CASES[case], 16)
    metadata = runner.attention.prepare(step, 16, runner.device)
    inputs = [torch.from_numpy(each) for each in (step.token_ids, step.positions, step.logit_rows)]
    with torch.inference_mode(), NoWaiting():
        logits = runner.model(*inputs, runner.cache, runner.attention, metadata)
    assert logits.shape == (len(step.logit_rows), 512)


def test_no_draw_waits() -> None:
    options = {"top_k": 5, "top_p": 0.9, "min_p": 0.01, "min_tokens": 3, "repetition_penalty": 1.2, "logprobs": 4}
    params = [SamplingParams(temperature=1.0, **options), SamplingParams(temperature=0.0), SamplingParams()]  # type: ignore[arg-type]
    tokens = [np.array([1, 2, 1], dtype=np.int32)] * 3
    adjustments = Adjustments.of(params, tokens, [1] * 3, [(2,)] * 3, 600)
    draws = SamplingInput.of(params, range(3), range(3), adjustments)
    logits = torch.randn(3, 600)
    with torch.inference_mode(), NoWaiting():
        chosen = sample_on_device(adjusted(logits, adjustments), draws)
        log_probabilities(logits, chosen, 4)
    assert chosen.min() >= 0


def test_metadata_is_built_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """``prepare`` a step, ``forward`` a step and layer (the model has two)."""
    core = device_core(CONFIG)
    attention: AttentionBackend[Any] = core.executor.runner.runner.attention  # type: ignore[attr-defined]
    calls = {"prepare": 0, "forward": 0}

    def counted(name: str) -> Any:
        original = getattr(attention, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return original(*args)

        return call

    for name in calls:
        monkeypatch.setattr(attention, name, counted(name))
    for i in range(3):
        core.add(
            Request(str(i), list(range(5 + 30 * i)), SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
        )
    steps = 0
    while core.has_work:
        core.step()
        steps += 1
    assert steps > 5
    assert calls == {"prepare": steps, "forward": 2 * steps}
