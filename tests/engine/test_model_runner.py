"""The runner's own duties: sizes, refusals, rows that want no logits, and the executor around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.executors.base import ScheduledBatch
from engine.executors.model import ModelExecutor, make_model_executor
from engine.model_input import build_model_input
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.sequence import Request, Sequence
from engine.weights.checkpoint import load_checkpoint
from tests.engine.model_driver import Driver

MODEL = "random:tiny-llama"


def sequence(name: str, length: int, block: int, params: SamplingParams) -> Sequence:
    """A prompt of ``length`` tokens in the one block ``block`` of 64."""
    seq = Sequence.from_request(Request(name, [(7 * i + block) % 500 for i in range(length)], params))
    seq.block_table = [block]
    return seq


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash"}, "sdpa, reference"),
        ({"dtype": "float64"}, "float32, bfloat16, float16"),
        ({"num_kv_blocks": 0}, "at least 1"),
        ({"block_size": 0}, "positive multiple"),
        ({"max_model_len": 5000}, "1 to 4096"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_would(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelRunner(load_checkpoint(MODEL), **({"num_kv_blocks": 4} | options))


def test_the_last_position_of_the_longest_sequence_can_be_computed() -> None:
    runner = ModelRunner(load_checkpoint(MODEL), num_kv_blocks=2, block_size=16, max_model_len=32)
    driver = Driver(runner)
    assert driver.run([driver.start(range(32))], 1)[0].isfinite().all()


@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_only_wanted_rows_get_logits_and_an_unfinished_chunk_gets_none(attention: str) -> None:
    runner = ModelRunner(load_checkpoint(MODEL), num_kv_blocks=4, block_size=64, attention=attention)
    seqs = [sequence("a", 9, 0, SamplingParams()), sequence("b", 5, 1, SamplingParams())]
    both = runner.forward(build_model_input(ScheduledBatch(seqs, [9, 5], [True, True]), 64))
    second = runner.forward(build_model_input(ScheduledBatch(seqs, [4, 5], [False, True]), 64))
    none = runner.forward(build_model_input(ScheduledBatch(seqs[:1], [4], [False]), 64))
    assert both.shape == (2, 512)
    assert none.shape == (0, 512)
    np.testing.assert_allclose(second, both[1:], rtol=1e-4, atol=1e-4)


def test_executor_gives_the_same_tokens_alone_and_together() -> None:
    runner = ModelRunner(load_checkpoint(MODEL), num_kv_blocks=8, block_size=64, attention="reference")
    executor = ModelExecutor(runner, seed=4)
    options = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.7, top_p=0.9, top_k=50),
    ]

    def generate(names: list[int], steps: int) -> dict[int, list[int]]:
        seqs = {i: sequence(f"request {i}", 5 + i, i, options[i]) for i in names}
        for _ in range(steps):
            counts = [seq.num_uncomputed_tokens for seq in seqs.values()]
            tokens, seconds = executor.execute(ScheduledBatch(list(seqs.values()), counts, [True] * len(seqs)))
            assert seconds > 0
            for seq, count, token in zip(seqs.values(), counts, tokens, strict=True):
                seq.num_computed_tokens += count
                seq.token_ids.append(token)
        return {i: seq.token_ids[seq.num_prompt_tokens :] for i, seq in seqs.items()}

    together = generate([0, 1, 2, 3], 8)
    for i in range(4):
        assert generate([i], 8)[i] == together[i]
    assert len({tuple(tokens) for tokens in together.values()}) == 4


def test_executor_with_nothing_to_sample_returns_no_token() -> None:
    runner = ModelRunner(load_checkpoint(MODEL), num_kv_blocks=4, block_size=64)
    seq = sequence("a", 9, 0, SamplingParams())
    tokens, _ = ModelExecutor(runner).execute(ScheduledBatch([seq], [4], [False]))
    assert tokens == []


def test_cache_size_follows_from_the_memory_given() -> None:
    """A token of tiny-llama takes 2 layers x (key and value) x 2 heads x 16 x 4 bytes = 512 bytes in float32."""
    config = EngineConfig(model=MODEL, backend="torch", kv_cache_gib=2**-10, block_size=8, num_threads=1)
    executor, facts = make_model_executor(config)
    assert executor.num_kv_blocks == 2**20 // (512 * 8)
    assert executor.max_model_len == 4096
    assert (facts.vocab_size, facts.execution["dtype"], facts.execution["attention"]) == (512, "float32", "sdpa")
    executor, facts = make_model_executor(
        replace(config, dtype="bfloat16", block_size="auto", backend="auto", attention="reference")
    )
    assert (executor.block_size, executor.num_kv_blocks) == (16, 2**20 // (256 * 16))
    assert (facts.execution["backend"], facts.execution["attention"]) == ("torch", "reference")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_gib": 1e-9}, "holds no KV block of 8192 bytes"),
        ({"max_model_len": 4097}, "at most 4096"),
        ({"backend": "native", "attention": "sdpa"}, "belongs to backend: torch"),
        ({"model": "random:none"}, "no shape 'none'"),
    ],
)
def test_engine_options_that_do_not_fit_the_model_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model_executor(EngineConfig(**({"model": MODEL, "backend": "torch", "num_threads": 1} | options)))
