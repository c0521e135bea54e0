"""Two ranks over gloo give one rank's tokens; aborts, mistakes, two engines at once, and a rank that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine import LLM, SamplingParams
from engine.parallel import TensorParallel, check_shares
from engine.parallel_runner import RankDied, TensorParallelRunner
from engine.weights.shapes import random_shape
from tests.engine import tiny_models
from tests.engine.model_driver import TIE

OPTIONS = {"backend": "torch", "num_threads": 2, "num_kv_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3], [7, 300, 11] * 10, [9, 8], [5] * 17, [40, 41, 42, 43]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 whose vocabulary of 383 does not divide by two."""
    folder = tmp_path_factory.mktemp("qwen3")
    tiny_models.build("qwen3", folder, vocab_size=383)
    Tokenizer(WordLevel({f"w{i}": i for i in range(383)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), tensor_parallel_size=2, **OPTIONS)
    yield llm
    runner_of(llm).close()


@pytest.fixture(scope="module")
def one(folder: Path) -> LLM:
    return LLM(str(folder), **OPTIONS)


def runner_of(llm: LLM) -> TensorParallelRunner:
    runner = llm.core.executor.runner  # type: ignore[attr-defined]
    assert isinstance(runner, TensorParallelRunner)
    return runner


def check_tokens(one: LLM, got: list[list[int]], params: SamplingParams) -> None:
    """``got`` is what one rank gives, up to the first step whose two largest logits are nearly tied."""
    for prompt, tokens in zip(PROMPTS, got, strict=True):
        (expected,) = one.generate([prompt], params, use_tqdm=False)
        if tokens == expected.token_ids:
            continue
        step = next(i for i, (a, b) in enumerate(zip(tokens, expected.token_ids, strict=True)) if a != b)
        (again,) = one.generate(
            [prompt + tokens[:step]], SamplingParams(temperature=0.0, max_tokens=1, logprobs=2), use_tqdm=False
        )
        assert again.logprobs is not None
        first, second = sorted(again.logprobs[0].values(), reverse=True)[:2]
        assert params.temperature == 0.0, f"{prompt}: another draw in step {step}"
        assert first - second < TIE, f"{prompt}: another token in step {step}"


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_two_ranks_give_one_ranks_tokens(one: LLM, two: LLM, params: SamplingParams) -> None:
    outputs = two.generate(PROMPTS, params, use_tqdm=False)
    check_tokens(one, [output.token_ids for output in outputs], params)
    assert two.info.fingerprints["execution"]["tensor_parallel_size"] == 2
    assert two.info.vocab_size == 383


def test_penalties_and_log_probabilities_are_the_same_too(one: LLM, two: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2, repetition_penalty=1.5, ignore_eos=True)
    (got,), (expected,) = (llm.generate([PROMPTS[1]], params, use_tqdm=False) for llm in (two, one))
    assert got.token_ids == expected.token_ids
    for mine, theirs in zip(got.logprobs or [], expected.logprobs or [], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)


def test_an_abort_ends_one_request_and_changes_no_other(one: LLM, two: LLM) -> None:
    names = [two.add_request(prompt, GREEDY) for prompt in PROMPTS[:3]]
    tokens: dict[str, list[int]] = {}
    two.step()
    two.abort(names[1])
    while not two.is_finished():
        tokens |= {output.request_id: output.token_ids for output in two.step() if output.finish_reason == "length"}
    assert set(tokens) == {names[0], names[2]}
    expected = one.generate([PROMPTS[0], PROMPTS[2]], GREEDY, use_tqdm=False)
    assert [tokens[names[0]], tokens[names[2]]] == [output.token_ids for output in expected]


def test_a_killed_rank_is_reported_and_the_rest_stopped_while_another_engine_goes_on(folder: Path, two: LLM) -> None:
    llm = LLM(str(folder), tensor_parallel_size=2, **OPTIONS)
    pids = runner_of(llm).pids
    assert not set(pids) & set(runner_of(two).pids)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankDied, match=rf"rank 1 \(pid {pids[1]}\) ended unexpectedly: exit code -9"):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    llm.add_request(PROMPTS[0], GREEDY)
    with pytest.raises(RankDied, match="have been stopped"):
        llm.step()
    assert len(two.generate(PROMPTS[:1], GREEDY, use_tqdm=False)[0].token_ids) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 3}, "possible are 1, 2"),
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"tensor_parallel_size": 2, "backend": "native"}, "belongs to backend: torch"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"attention": "flash_attn"}, "wants a GPU|needs"),
        ({"attention": "triton"}, "wants a GPU|needs"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    if torch.cuda.is_available() and options.get("tensor_parallel_size") != 0:
        pytest.skip("a GPU has other limits")
    with pytest.raises(ValueError, match=message):
        LLM("random:tiny-llama", **{**OPTIONS, **options})


def test_shares_join_to_the_whole_matrix() -> None:
    matrix = torch.arange(24.0).view(6, 4)
    ranks = [TensorParallel(rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([rank.rows_of(matrix) for rank in ranks]), matrix)
    assert torch.equal(torch.cat([rank.columns_of(matrix) for rank in ranks], dim=1), matrix)
    check_shares(random_shape("random:qwen3-8b"), 8)
    with pytest.raises(ValueError, match="possible are 1, 2, 4, 8"):
        check_shares(random_shape("random:qwen3-8b"), 16)
