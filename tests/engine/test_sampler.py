"""Draws follow the distribution that each option defines, whatever the batch, and extreme temperatures stay finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.layers.sampler import sample, stream_seed, uniform
from engine.sampling_params import SamplingParams

VOCAB = 60


def logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.0, size=(rows, vocab)).astype(np.float32)


def transformers_distribution(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What transformers' warpers make of the same options, as probabilities in float64."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    probabilities: np.ndarray = torch.softmax(warpers(None, torch.from_numpy(row[None]))[0].double(), dim=-1).numpy()
    return probabilities


OPTIONS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=3.0),
    SamplingParams(top_k=5),
    SamplingParams(top_k=1),
    SamplingParams(top_p=0.7),
    SamplingParams(top_p=1e-6),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.8, min_p=0.05),
]


@pytest.mark.parametrize("params", OPTIONS, ids=str)
def test_frequencies_match_transformers_distribution(params: SamplingParams) -> None:
    draws = 4000
    row = logits(1)[0]
    expected = transformers_distribution(row, params)
    tokens = sample(np.broadcast_to(row, (draws, VOCAB)), [params] * draws, [123] * draws, range(draws))
    counts = np.bincount(tokens, minlength=VOCAB)
    assert not counts[expected == 0.0].any(), "a token was drawn that the filters bar"
    # Cells of expected count below 5 are put together, as the chi-square approximation wants.
    rare = expected * draws < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum()) * draws
    if wanted[-1] < 5:
        observed, wanted = np.append(observed[:-2], observed[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
    if len(wanted) > 1:
        assert stats.chisquare(observed, wanted).pvalue > 1e-4


def test_the_kept_sets_equal_transformers_on_a_large_vocabulary() -> None:
    """Nearly flat, usual and steep logits: every draw lies in transformers' kept set."""
    rows = np.concatenate([logits(1, 5000, seed) * scale for seed, scale in ((1, 0.01), (2, 1.0), (3, 4.0))])
    params = [SamplingParams(top_p=0.5), SamplingParams(top_p=0.95), SamplingParams(top_k=700, top_p=0.9)]
    drawn: list[set[int]] = [set() for _ in params]
    for position in range(300):
        for found, token in zip(drawn, sample(rows, params, [1, 2, 3], [position] * 3), strict=True):
            found.add(token)
    for found, row, option in zip(drawn, rows, params, strict=True):
        kept = set(np.flatnonzero(transformers_distribution(row, option)).tolist())
        assert found <= kept
    assert len(drawn[0]) > 256 / 2


def test_temperatures_from_zero_to_one_share_a_batch_without_nan() -> None:
    rows = logits(1).repeat(6, axis=0)
    rows[:, 7] = float("-inf")
    temperatures = (0.0, 1e-45, 1e-12, 1e-5, 1e-2, 1.0)
    params = [SamplingParams(temperature=value) for value in temperatures]
    before = rows.copy()
    for position in range(50):
        tokens = sample(rows, params, [9] * 6, [position] * 6)
        assert tokens[:4] == [int(rows[0].argmax())] * 4
        assert 7 not in tokens
    assert np.array_equal(rows, before), "the caller's logits were changed"


def test_one_allowed_token_is_drawn_and_impossible_rows_are_an_error() -> None:
    row = np.full((1, VOCAB), -np.inf, dtype=np.float32)
    with pytest.raises(FloatingPointError, match="row 0"):
        sample(row, [SamplingParams()], [1], [0])
    row[0, 31] = -5.0
    assert sample(row, [SamplingParams(top_p=0.5, top_k=3, min_p=0.5)], [1], [0]) == [31]
    row[0, 3] = np.nan
    with pytest.raises(FloatingPointError):
        sample(row, [SamplingParams(temperature=0.0)], [1], [0])


def test_a_request_draws_the_same_tokens_in_any_batch() -> None:
    rows = logits(40, 500)
    params = [OPTIONS[i % len(OPTIONS)] if i % 4 else SamplingParams(temperature=0.0) for i in range(40)]
    seeds = [stream_seed(0, f"request {i}") for i in range(40)]
    together = sample(rows, params, seeds, list(range(40)))
    for i in range(40):
        assert sample(rows[i : i + 1], [params[i]], [seeds[i]], [i]) == [together[i]]
    order = np.random.default_rng(1).permutation(40).tolist()
    shuffled = sample(rows[order], [params[i] for i in order], [seeds[i] for i in order], order)
    assert shuffled == [together[i] for i in order]


def test_inversion_by_blocks_equals_the_plain_running_sum() -> None:
    row = logits(1, 3001, seed=4)
    cumulative = np.cumsum(transformers_distribution(row[0], SamplingParams()))
    for position in range(500):
        number = uniform(8, position)
        expected = int(np.searchsorted(cumulative, number, side="right"))
        [token] = sample(row, [SamplingParams()], [8], [position])
        if min(abs(cumulative[expected] - number), abs(cumulative[expected - 1] - number)) > 1e-6:
            assert token == expected


def test_streams_are_uniform_along_positions_and_across_requests() -> None:
    along = [uniform(5, position) for position in range(3000)]
    across = [uniform(stream_seed(0, f"request {i}"), 17) for i in range(3000)]
    for numbers in (along, across):
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4
        lagged = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
        assert abs(lagged) < 4 / np.sqrt(3000)
    assert uniform(-1, 0) != uniform(1, 0)
    assert uniform(2**200 + 3, 0) == uniform(2**200 + 3, 0)


def test_tokens_of_no_weight_are_never_drawn_at_the_ends_of_the_unit_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.full((1, 1000), -np.inf, dtype=np.float32)
    row[0, [1, 300, 700]] = 0.0
    for number, token in ((0.0, 1), (0.5, 300), (1.0 - 2**-53, 700)):
        monkeypatch.setattr("engine.layers.sampler.uniform", lambda seed, position, number=number: number)
        assert sample(row, [SamplingParams()], [0], [0]) == [token]
