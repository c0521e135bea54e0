"""Sampling on the device against the sampler of the host: the same uniform numbers, the same penalties and bars to the last
bit, the same log-probabilities and, but for rounding, the same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.executors.device import TokenHistories
from engine.layers.device_logits import Adjustments, adjusted
from engine.layers.device_sampler import SamplingInput, draw, sample_on_device, uniforms
from engine.layers.sampler import adjust, log_probabilities, sample, uniform
from engine.sampling_params import SamplingParams
from engine.sequence import Request, Sequence
from tests.engine.device_engine import device_core

OPTIONS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=7),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.7, min_p=0.02),
    SamplingParams(temperature=1e-12),
    SamplingParams(temperature=1.0, top_k=100_000),
]


@given(st.lists(st.tuples(st.integers(0, (1 << 130) - 1), st.integers(0, 1 << 40)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_uniform_numbers_are_numpys_to_the_last_bit(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*pairs, strict=True)
    assert uniforms(seeds, positions).tolist() == [uniform(seed, position) for seed, position in pairs]


@pytest.mark.parametrize("vocab", [7, 256, 1000])
def test_tokens_are_the_hosts(vocab: int) -> None:
    """400 rows of every kind in one batch. A draw within rounding of a border may differ: about 1e-6 of them would."""
    generator = torch.Generator().manual_seed(vocab)
    params = [OPTIONS[i % len(OPTIONS)] for i in range(400)]
    logits = torch.randn(400, vocab, generator=generator) * 2
    logits[5::9, : vocab // 2] = float("-inf")
    logits[3::16, -3:] = logits[3::16].max(dim=-1).values[:, None]  # ties
    seeds, positions = list(range(400)), [3 * i for i in range(400)]
    expected = sample(logits.numpy(), params, seeds, positions)
    got = sample_on_device(logits.clone(), SamplingInput.of(params, seeds, positions)).tolist()
    assert got == expected


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=1.0, top_p=0.9)] * 6
    together = sample_on_device(logits, SamplingInput.of(params, range(6), range(6))).tolist()
    alone = [sample_on_device(logits[i : i + 1], SamplingInput.of(params[:1], [i], [i])).item() for i in range(6)]
    assert together == alone


def test_frequencies_are_the_softmax() -> None:
    """20,000 draws of 5 tokens: each count within 4.5 standard deviations of its expectation."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, float("-inf")])
    count = 20_000
    options = SamplingInput.of([SamplingParams(temperature=1.0)] * count, [9] * count, range(count))
    tokens = sample_on_device(logits.expand(count, 5).contiguous(), options).numpy()
    shares = torch.softmax(logits, 0).numpy()
    deviations = np.sqrt(count * shares * (1 - shares))
    assert (np.abs(np.bincount(tokens, minlength=5) - count * shares) <= 4.5 * deviations).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_no_token_can_be_drawn_from_are_marked(bad: float) -> None:
    logits = torch.zeros(3, 20)
    logits[0, 4] = bad
    logits[2] = float("-inf")
    options = SamplingInput.of([SamplingParams(temperature=1.0)] * 3, range(3), range(3))
    tokens = sample_on_device(logits, options).tolist()
    assert (tokens[0], tokens[2]) == (-1, -1)
    assert tokens[1] >= 0


SPECIAL = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, repetition_penalty=1.7),
    SamplingParams(temperature=0.0, repetition_penalty=0.4, logprobs=3),
    SamplingParams(temperature=0.8, frequency_penalty=0.7, presence_penalty=-1.3, top_k=9),
    SamplingParams(temperature=1.0, presence_penalty=2.0, min_tokens=9, stop_token_ids=(5, 6, 10_000), logprobs=0),
    SamplingParams(temperature=1.0, min_tokens=4, stop_token_ids=(1,), top_p=0.8),
    SamplingParams(temperature=1.2, repetition_penalty=1.1, frequency_penalty=-0.3, min_p=0.05, logprobs=1000),
    SamplingParams(temperature=1.0, logprobs=7),
]


@pytest.mark.parametrize("vocab", [7, 300])
def test_penalties_bars_and_log_probabilities_are_the_hosts_row_by_row(vocab: int) -> None:
    """200 rows in one batch, of 1 to 40 known tokens with repeats, some all prompt; ties and barred tokens among the
    logits."""
    random = np.random.default_rng(vocab)
    params = [SPECIAL[i % len(SPECIAL)] for i in range(200)]
    tokens = [random.integers(0, vocab, random.integers(1, 41)).astype(np.int32) for _ in params]
    prompts = [int(random.integers(1, len(each) + 1)) for each in tokens]
    ends = [(2, 50_000) if i % 3 else () for i in range(200)]
    logits = (random.normal(size=(200, vocab)) * 2).astype(np.float32)
    logits[1::5, vocab // 2 :] = -np.inf
    logits[2::7] = np.round(logits[2::7])  # ties; zeros of both signs
    outputs = [len(each) - prompt for each, prompt in zip(tokens, prompts, strict=True)]
    rows = [adjust(*each) for each in zip(logits, params, tokens, prompts, ends, strict=True)]
    adjustments = Adjustments.of(params, tokens, outputs, ends, vocab)
    on_device = torch.from_numpy(logits.copy())
    np.testing.assert_array_equal(
        adjusted(on_device, adjustments).numpy().view(np.int32), np.array(rows).view(np.int32)
    )
    seeds, positions = list(range(200)), [len(each) for each in tokens]
    options = SamplingInput.of(params, seeds, positions, adjustments)
    drawn = draw(on_device, options)
    expected = sample(rows, params, seeds, positions)
    assert drawn.tokens.tolist() == expected
    assert torch.equal(on_device, torch.from_numpy(logits)), "the model's logits are left as they are"
    asked = [i for i, each in enumerate(params) if each.logprobs is not None]
    assert options.logprob_rows.tolist() == asked
    for i, ids, logs in zip(asked, drawn.logprob_ids, drawn.logprobs, strict=True):
        want = log_probabilities(logits[i], expected[i], params[i].logprobs or 0)
        entries = 1 + (params[i].logprobs or 0)
        got = dict(zip(ids[:entries].tolist(), logs[:entries].tolist(), strict=True))
        assert list(got) == list(want)
        assert list(got.values()) == pytest.approx(list(want.values()), rel=1e-12)


def test_rows_without_penalties_are_handed_on_as_they_are() -> None:
    params = [SamplingParams(), SamplingParams(min_tokens=3)]
    adjustments = Adjustments.of(params, [np.empty(0, dtype=np.int32)] * 2, [0, 3], [(2,), (2,)], 10)
    logits = torch.zeros(2, 10)
    assert adjusted(logits, adjustments) is logits


def test_a_row_that_bars_every_token_is_marked_also_where_log_probabilities_are_wanted() -> None:
    params = [SamplingParams(min_tokens=1, stop_token_ids=(0, 1, 2), logprobs=2)] * 2
    adjustments = Adjustments.of(params, [np.empty(0, dtype=np.int32)] * 2, [0, 1], [()] * 2, 3)
    drawn = draw(torch.zeros(2, 3), SamplingInput.of(params, [1, 2], [0, 0], adjustments))
    assert drawn.tokens[0] == -1
    assert drawn.tokens[1] >= 0


def test_known_tokens_are_kept_as_an_array_that_grows_with_the_request() -> None:
    histories = TokenHistories()
    seq = Sequence.from_request(Request("a", [5, 6, 7]))
    for token_id in range(100):
        assert histories.of(seq).tolist() == seq.token_ids
        seq.token_ids.append(token_id)
    histories.forget("a")
    again = Sequence.from_request(Request("a", [9]))
    assert histories.of(again).tolist() == [9]


def test_a_device_executor_gives_the_tokens_and_log_probabilities_of_the_plain_one() -> None:
    """The whole engine, with few enough blocks that requests are preempted on the way."""
    config = EngineConfig(
        model="random:tiny-llama", backend="torch", device="cpu", num_threads=1, num_kv_blocks=7, block_size=16,
        max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64,
    )  # fmt: skip
    found = []
    for on_host in (True, False):
        core = device_core(config, on_host)
        seqs = [
            core.add(Request(str(i), [(11 * i + k) % 500 for k in range(3 + 4 * i)], replace(each, max_tokens=12)))
            for i, each in enumerate(SPECIAL)
        ]
        while core.has_work:
            core.step()
        assert any(seq.preemptions for seq in seqs)
        found.append(seqs)
    for one, other in zip(*found, strict=True):
        assert one.token_ids == other.token_ids
        assert (
            len(one.logprobs)
            == len(other.logprobs)
            == (one.num_output_tokens if one.params.logprobs is not None else 0)
        )
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert list(mine) == list(theirs)
            assert list(mine.values()) == pytest.approx(list(theirs.values()), rel=1e-9)
