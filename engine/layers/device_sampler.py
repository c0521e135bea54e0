"""Chooses the next token of every row on the device, without a loop over rows; the host waits once, for the tokens.

What the options mean is said in ``sampler.py``, and the uniform number of each draw is the same one (Philox keyed by the
request's seed, counted by the token's position), so a draw depends on nothing but its own row. Sums are taken in another
order than there: a draw that falls within rounding of a border between two tokens may come out as the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.layers.device_logits import Adjustments, adjusted, log_probabilities
from engine.sampling_params import SamplingParams
from engine.transfer import move

_BLOCK = 256
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)
_ONE_BITS = 0x3F800000  # 1.0 as a float32's bits
# Constants of Philox 4x64 (Salmon et al. 2011), 10 rounds.
_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class SamplingInput:
    """How the R rows of a step are drawn.

    Attributes:
        temperatures, top_p, min_p: float32 [R].
        top_k: int64 [R]; 0 keeps all.
        numbers: float64 [R], the uniform number of each draw.
        logprob_rows: int64 [L], rows whose log-probabilities are wanted.
        logprob_count: of how many likeliest tokens beside the row's own, the most that any of these rows asks for.
        adjustments: penalties and barred ids; ``None`` where no row has any.
    """

    temperatures: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    numbers: NDArray[np.float64]
    logprob_rows: NDArray[np.int64]
    logprob_count: int
    adjustments: Adjustments | None

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        adjustments: Adjustments | None = None,
    ) -> SamplingInput:
        """From each row's options, stream and position; a greedy row needs no number."""
        drawn = [i for i, each in enumerate(params) if each.temperature > 0.0]
        numbers = np.zeros(len(params))
        numbers[drawn] = uniforms([seeds[i] for i in drawn], [positions[i] for i in drawn])
        return cls(
            np.array([each.temperature for each in params], dtype=np.float32),
            np.array([each.top_k for each in params], dtype=np.int64),
            np.array([each.top_p for each in params], dtype=np.float32),
            np.array([each.min_p for each in params], dtype=np.float32),
            numbers,
            np.array([i for i, each in enumerate(params) if each.logprobs is not None], dtype=np.int64),
            max((each.logprobs for each in params if each.logprobs is not None), default=0),
            adjustments,
        )


@dataclass(frozen=True)
class Drawn:
    """What became of the R rows of a step.

    Attributes:
        tokens: int64 [R], -1 where a row has NaN or +inf or bars every token.
        logprob_ids, logprobs: int64 and float64 [L, 1 + count], the token itself and the likeliest ones of each row of
            ``SamplingInput.logprob_rows``; [0, 0] where there is none.
    """

    tokens: NDArray[np.int64]
    logprob_ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]

    @classmethod
    def nothing(cls) -> Drawn:
        """Of a step whose rows want no token."""
        return cls(np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.int64), np.empty((0, 0)))


@torch.inference_mode()
def draw(logits: Tensor, options: SamplingInput) -> Drawn:
    """A token for each row of ``logits`` float32 [R, vocab], which are left as they are. Waits for the device."""
    changed = logits if options.adjustments is None else adjusted(logits, options.adjustments)
    tokens = sample_on_device(changed, options)
    if not len(options.logprob_rows):
        return replace(Drawn.nothing(), tokens=tokens.cpu().numpy())
    rows = move(options.logprob_rows, logits.device)
    count = min(options.logprob_count, logits.shape[1])
    ids, logs = log_probabilities(logits.index_select(0, rows), tokens.index_select(0, rows), count)
    return Drawn(tokens.cpu().numpy(), ids.cpu().numpy(), logs.cpu().numpy())


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """``sampler.uniform`` of each pair, [R], for all at once: the first double of numpy's Philox at that key and counter."""
    keys = np.array([(seed & (1 << 64) - 1, seed >> 64 & (1 << 64) - 1) for seed in seeds], dtype=np.uint64).reshape(
        -1, 2
    )
    key0, key1 = keys[:, 0].copy(), keys[:, 1].copy()
    # numpy counts on before it draws.
    c0 = np.array(positions, dtype=np.uint64) + np.uint64(1)
    c1, c2, c3 = (np.zeros_like(c0) for _ in range(3))
    for turn in range(10):
        if turn:
            key0 += _WEYL[0]
            key1 += _WEYL[1]
        high0, low0 = _wide_product(_MULTIPLIERS[0], c0)
        high1, low1 = _wide_product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return (c0 >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _wide_product(a: np.uint64, b: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """High and low 64 bits of ``a * b``, by halves of 32 bits."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low = a_low * b_low
    middle = a_high * b_low + (low >> _HALF)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF), a * b


@torch.inference_mode()
def sample_on_device(logits: Tensor, options: SamplingInput) -> Tensor:
    """One token id a row of ``logits`` float32 [R, vocab]: int64 [R], -1 where a row has NaN or +inf or bars every token."""
    top, greedy = logits.max(dim=-1)
    # NaN compares false with everything, so that a NaN maximum is caught as well.
    greedy = torch.where(top.abs() < float("inf"), greedy, -1)
    drawn = options.temperatures > 0.0
    if not drawn.any():
        return greedy
    device = logits.device
    temperatures = move(np.maximum(options.temperatures, _LEAST_TEMPERATURE), device)
    scaled = (logits - top[:, None]).div_(temperatures[:, None])
    filtered = np.flatnonzero(drawn & (options.top_k > 0) & (options.top_k < logits.shape[1]))
    if len(filtered):
        _keep_top_k(scaled, filtered, options.top_k[filtered])
    weights = scaled.exp_()
    filtered = np.flatnonzero(drawn & ((options.top_p < 1.0) | (options.min_p > 0.0)))
    if len(filtered):
        _keep_likely(weights, filtered, options)
    tokens = _invert(weights, move(options.numbers, device))
    if not drawn.all():
        tokens = torch.where(move(drawn, device), tokens, greedy)
    return torch.where(greedy < 0, greedy, tokens)


def _keep_top_k(scaled: Tensor, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Bar, in those rows, what is below the ``counts``-th largest (ties with it are kept)."""
    index, wanted = move(rows, scaled.device), move(counts, scaled.device)
    part = scaled.index_select(0, index)
    largest = part.topk(int(counts.max()), dim=-1).values
    least = largest.gather(1, wanted[:, None] - 1)
    scaled.index_copy_(0, index, part.masked_fill_(part < least, float("-inf")))


def _keep_likely(weights: Tensor, rows: NDArray[np.int64], options: SamplingInput) -> None:
    """Weight 0, in those rows, outside of the nucleus (top-p) and below min-p times the largest, which is 1."""
    index = move(rows, weights.device)
    part = weights.index_select(0, index)
    least = move(options.min_p[rows], weights.device)
    if (options.top_p[rows] < 1.0).any():
        shares = move(options.top_p[rows].astype(np.float64), weights.device)
        least = torch.where(shares < 1.0, torch.maximum(least, _nucleus_least(part, shares)), least)
    weights.index_copy_(0, index, part.masked_fill_(part < least[:, None], 0.0))


def _nucleus_least(weights: Tensor, shares: Tensor) -> Tensor:
    """float32 [R]: the smallest weight of the smallest set that holds a share of each row's weight.

    That is the largest threshold whose weights together reach the share. Positive floats are ordered as their bits are, so
    the threshold is found bit by bit, which needs no sorting.
    """
    goal = shares * weights.sum(dim=-1, dtype=torch.float64)
    low = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
    high = torch.full_like(low, _ONE_BITS)
    for _ in range(_ONE_BITS.bit_length()):
        middle = low + (high - low + 1) // 2
        above = weights >= middle.view(torch.float32)[:, None]
        reached = weights.mul(above).sum(dim=-1, dtype=torch.float64) >= goal
        low = torch.where(reached, middle, low)
        high = torch.where(reached, high, middle - 1)
    return low.view(torch.float32)


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """int64 [R]: first index where the running sum of each row passes its number's share of the total, by blocks."""
    rows, size = weights.shape
    padded = F.pad(weights, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    sums = padded.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = sums[:, -1]
    target = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))[:, None]
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = padded.gather(1, block[:, :, None].expand(-1, 1, _BLOCK)).squeeze(1)
    index = torch.searchsorted(inside.cumsum(dim=-1, dtype=torch.float64), target - before, right=True)
    # Rounding of the two sums may put the rest at the very end: then it is the last token with weight.
    lanes = torch.arange(_BLOCK, device=weights.device)
    last = torch.where(inside > 0.0, lanes, 0).amax(dim=-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(index, last)).squeeze(1)
