"""Reported against vLLM (1623, 3063, 22180): a temperature near 0, or logits of minus infinity, give NaN. T = 0 is argmax,
and so is what float32 can't tell from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine import LLM, SamplingParams

TEMPERATURES = (0.0, 1e-45, 1e-12, 1e-5, 1e-2, 1.0)


@pytest.mark.parametrize("bars", [False, True])
def test_temperatures_from_zero_to_one_in_one_batch(monkeypatch: pytest.MonkeyPatch, bars: bool) -> None:
    llm = LLM("random:tiny-llama", backend="torch", num_threads=1, num_kv_blocks=64)
    forward = llm.core.executor.runner.forward  # type: ignore[attr-defined]

    def with_bars(*step: object) -> np.ndarray:
        logits = np.array(forward(*step))
        logits[:, ::2] = -np.inf
        return logits

    if bars:
        monkeypatch.setattr(llm.core.executor.runner, "forward", with_bars)  # type: ignore[attr-defined]
    params = [
        SamplingParams(temperature=t, seed=3, max_tokens=16, ignore_eos=True, logprobs=1, top_p=0.9)
        for t in TEMPERATURES
    ]
    outputs = llm.generate([[1, 2, 3]] * len(TEMPERATURES), params, use_tqdm=False)
    for output in outputs:
        assert len(output.token_ids) == 16
        assert output.logprobs is not None
        assert all(math.isfinite(each[token]) for each, token in zip(output.logprobs, output.token_ids, strict=True))
        assert not bars or all(token % 2 for token in output.token_ids)
    for output in outputs[:4]:  # two logits closer than 1e-4 would be needed to see these differ
        best = [max(each, key=lambda token, each=each: each[token]) for each in output.logprobs or []]  # type: ignore[misc]
        assert output.token_ids == best == outputs[0].token_ids
    assert outputs[-1].token_ids != outputs[0].token_ids
