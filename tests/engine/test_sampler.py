"""Draws follow the distribution that each option defines, whatever the batch, and extreme temperatures stay finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.layers.sampler import adjust, log_probabilities, sample, stream_seed, uniform
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


def check_frequencies(row: np.ndarray, expected: np.ndarray, params: SamplingParams) -> None:
    """Draws from ``row`` against the ``expected`` probabilities: none that is barred, the others by chi-square."""
    draws = 4000
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


@pytest.mark.parametrize("params", OPTIONS, ids=str)
def test_frequencies_match_transformers_distribution(params: SamplingParams) -> None:
    row = logits(1)[0]
    check_frequencies(row, transformers_distribution(row, params), params)


def test_the_kept_sets_equal_transformers_on_a_large_vocabulary() -> None:
    """Nearly flat, usual and steep logits: every draw lies in transformers' kept set."""
    rows = np.concatenate([logits(1, 5000, seed) * scale for seed, scale in ((1, 0.01), (2, 1.0), (3, 4.0), (4, 1.0))])
    params = [
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=700, top_p=0.9),
        SamplingParams(top_k=15),
    ]
    drawn: list[set[int]] = [set() for _ in params]
    for position in range(300):
        for found, token in zip(drawn, sample(rows, params, [1, 2, 3, 4], [position] * 4), strict=True):
            found.add(token)
    for found, row, option in zip(drawn, rows, params, strict=True):
        kept = set(np.flatnonzero(transformers_distribution(row, option)).tolist())
        assert found <= kept
    assert len(drawn[0]) > 256 / 2
    assert len(drawn[3]) == 15


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
    for seed, position in ((0, 0), (5, 12), (2**64 - 1, 2**40), (2**128 - 1, 3), (stream_seed(1, "a"), 100)):
        numpys = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
        assert uniform(seed, position) == numpys
    assert uniform(-1, 0) != uniform(1, 0)
    assert uniform(2**200 + 3, 0) == uniform(2**200 + 3, 0)
    assert uniform(np.int64(7), 0) == uniform(7, 0)  # type: ignore[arg-type]


def test_tokens_of_no_weight_are_never_drawn_at_the_ends_of_the_unit_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.full((1, 1000), -np.inf, dtype=np.float32)
    row[0, [1, 300, 700]] = 0.0
    for number, token in ((0.0, 1), (0.5, 300), (1.0 - 2**-53, 700)):
        monkeypatch.setattr("engine.layers.sampler.uniform", lambda seed, position, number=number: number)
        assert sample(row, [SamplingParams()], [0], [0]) == [token]


PENALTIES = [
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(presence_penalty=1.2),
    SamplingParams(frequency_penalty=0.6),
    SamplingParams(presence_penalty=-0.5, frequency_penalty=-0.3),
    SamplingParams(repetition_penalty=0.8, presence_penalty=0.7, frequency_penalty=0.4, temperature=1.3, top_k=30),
]
PROMPT, OUTPUT = [3, 4, 4, 9, 20], [4, 7, 7, 7, 31, 59]


def penalized_by_hand(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """vLLM's formula, token by token; transformers' processor for the repetition."""
    repetition = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
    penalized = repetition(torch.tensor([PROMPT + OUTPUT]), torch.from_numpy(row[None].copy()))[0].numpy()
    for token in range(len(row)):
        count = OUTPUT.count(token)
        penalized[token] -= params.frequency_penalty * count
        if count:
            penalized[token] -= params.presence_penalty
    return np.asarray(penalized)


@pytest.mark.parametrize("params", PENALTIES, ids=str)
def test_frequencies_match_the_softmax_of_penalized_logits(params: SamplingParams) -> None:
    row = logits(1)[0]
    row[5] = -np.inf
    before = row.copy()
    adjusted = adjust(row, params, PROMPT + OUTPUT, len(PROMPT), frozenset())
    expected = penalized_by_hand(row, params)
    np.testing.assert_allclose(adjusted, expected, rtol=1e-6)
    check_frequencies(adjusted, transformers_distribution(expected, params), params)
    assert np.array_equal(row, before), "the caller's logits were changed"


def test_a_row_without_penalties_is_not_even_copied() -> None:
    row = logits(1)[0]
    assert adjust(row, SamplingParams(), PROMPT + OUTPUT, len(PROMPT), {1}) is row
    assert adjust(row, SamplingParams(min_tokens=len(OUTPUT)), PROMPT + OUTPUT, len(PROMPT), {1}) is row


def test_before_the_first_output_token_only_the_repetition_of_the_prompt_counts() -> None:
    row = logits(1)[0]
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=2.0, frequency_penalty=2.0)
    changed = np.flatnonzero(adjust(row, params, PROMPT, len(PROMPT), frozenset()) != row)
    assert changed.tolist() == sorted(set(PROMPT))


def test_until_min_tokens_ends_are_barred_and_the_rest_keeps_its_odds() -> None:
    row = logits(1)[0]
    params = SamplingParams(min_tokens=len(OUTPUT) + 1, max_tokens=20, stop_token_ids=(6, VOCAB + 5), ignore_eos=True)
    barred = adjust(row, params, PROMPT + OUTPUT, len(PROMPT), frozenset({8, 11}))
    assert np.flatnonzero(np.isneginf(barred)).tolist() == [6, 8, 11]
    expected = np.exp(row.astype(np.float64))
    expected[[6, 8, 11]] = 0.0
    check_frequencies(barred, expected / expected.sum(), params)


@pytest.mark.parametrize("count", [0, 1, 5, VOCAB, VOCAB + 1])
def test_log_probabilities_are_torchs_and_sorted(count: int) -> None:
    row = logits(1)[0]
    row[17] = -np.inf
    expected = torch.log_softmax(torch.from_numpy(row).double(), dim=-1)
    token = int(expected.topk(3).indices[2])
    found = log_probabilities(row, token, count)
    best = expected.topk(min(count, VOCAB)).indices.tolist()
    assert list(found) == [token, *(i for i in best if i != token)]
    np.testing.assert_allclose(list(found.values()), expected[list(found)].numpy(), rtol=1e-12)


def test_of_equal_logits_the_lower_ids_are_listed() -> None:
    assert list(log_probabilities(np.zeros(9, dtype=np.float32), 8, 3)) == [8, 0, 1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("nan")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("-inf")),
        ("logprobs", -1),
        ("logprobs", True),
        ("n", 0),
        ("n", 1.5),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", 2.5),
        ("top_p", None),
        ("max_tokens", 2.5),
        ("min_tokens", 65),
        ("seed", 1.5),
        ("ignore_eos", "no"),
        ("stop", [1]),
        ("stop", [""]),
        ("stop_token_ids", ["a"]),
    ],
)
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"SamplingParams.{name} is"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_one_end_needs_no_list_and_numpys_numbers_are_numbers() -> None:
    params = SamplingParams(stop="x", stop_token_ids=5, max_tokens=np.int64(3), temperature=np.float32(0.5))  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids, params.max_tokens, params.temperature) == (("x",), (5,), 3, 0.5)
