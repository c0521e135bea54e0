"""Sampling on the device against the sampler of the host: the same uniform numbers and, but for rounding, the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.layers.device_sampler import SamplingInput, sample_on_device, uniforms
from engine.layers.sampler import sample, uniform
from engine.sampling_params import SamplingParams

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
    got = sample_on_device(logits.clone(), SamplingInput.of(params, seeds, positions, [])).tolist()
    assert got == expected


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=1.0, top_p=0.9)] * 6
    together = sample_on_device(logits, SamplingInput.of(params, range(6), range(6), [])).tolist()
    alone = [sample_on_device(logits[i : i + 1], SamplingInput.of(params[:1], [i], [i], [])).item() for i in range(6)]
    assert together == alone


def test_frequencies_are_the_softmax() -> None:
    """20,000 draws of 5 tokens: each count within 4.5 standard deviations of its expectation."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, float("-inf")])
    count = 20_000
    options = SamplingInput.of([SamplingParams(temperature=1.0)] * count, [9] * count, range(count), [])
    tokens = sample_on_device(logits.expand(count, 5).contiguous(), options).numpy()
    shares = torch.softmax(logits, 0).numpy()
    deviations = np.sqrt(count * shares * (1 - shares))
    assert (np.abs(np.bincount(tokens, minlength=5) - count * shares) <= 4.5 * deviations).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_no_token_can_be_drawn_from_are_marked(bad: float) -> None:
    logits = torch.zeros(3, 20)
    logits[0, 4] = bad
    logits[2] = float("-inf")
    options = SamplingInput.of([SamplingParams(temperature=1.0)] * 3, range(3), range(3), [])
    tokens = sample_on_device(logits, options).tolist()
    assert (tokens[0], tokens[2]) == (-1, -1)
    assert tokens[1] >= 0
