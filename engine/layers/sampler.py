"""Chooses the next token of every row: greedy, or drawn after temperature, top-k, top-p and min-p, in that order.

Barred tokens and penalties (:func:`adjust`) come before that, log-probabilities (:func:`log_probabilities`) from the
logits as the model gave them; both take and give a row alone.

The filters mean what transformers' logits warpers of the same names mean (ties with the last token kept are kept).
Each draw inverts the distribution at one uniform number from a counter-based generator (Philox, Salmon et al. 2011)
keyed by the request's seed and counted by the token's position: a request draws the same numbers in any batch and after
any preemption, and no state is kept. Rows are worked on one by one, so that not even rounding depends on the batch;
with numpy that is also several times faster on a CPU than the whole batch in torch. No row is sorted or partitioned as
a whole: a bound that is cheap to find leaves a few tokens, and those are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams

Row = NDArray[np.float32]
Weigh = Callable[[Row, float, float], Row]

_64_BITS = (1 << 64) - 1
_BLOCK = 256
# Below float32's smallest normal number every temperature is the same: all weight on the largest logit.
_LEAST_TEMPERATURE = float(np.finfo(np.float32).tiny)


def stream_seed(engine_seed: int, request_id: str) -> int:
    """The 128-bit seed of a request that gave none: from the engine's seed and the request's id."""
    return int.from_bytes(hashlib.sha256(f"{engine_seed}/{request_id}".encode()).digest()[:16], "little")


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at ``position`` of the stream ``seed``.

    The first that numpy's ``Generator(Philox(key=seed, counter=position))`` gives; making one takes four times as long.
    """
    key, count = int(seed) % (1 << 128), int(position) + 1  # numpy counts before it draws
    key0, key1 = key & _64_BITS, key >> 64
    word0, word1, word2, word3 = count & _64_BITS, count >> 64, 0, 0
    for _ in range(10):
        product0, product2 = 0xD2E7470EE14C6C93 * word0, 0xCA5A826395121157 * word2
        word0, word1 = (product2 >> 64) ^ word1 ^ key0, product2 & _64_BITS
        word2, word3 = (product0 >> 64) ^ word3 ^ key1, product0 & _64_BITS
        key0, key1 = (key0 + 0x9E3779B97F4A7C15) & _64_BITS, (key1 + 0xBB67AE8584CAA73B) & _64_BITS
    return (word0 >> 11) * 2.0**-53


def weigh(row: Row, top: float, inverse_temperature: float) -> Row:
    """e^((l - ``top``) * ``inverse_temperature``) of every logit l, as float32; ``top`` is the largest, so all are <= 1."""
    with np.errstate(over="ignore"):
        weights = row - np.float32(top)
        weights *= np.float32(inverse_temperature)
    return np.exp(weights, out=weights)


def adjust(
    row: Row, params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int, eos_token_ids: Iterable[int]
) -> Row:
    """``row`` after penalties and with the ids barred that may not end the output yet; ``row`` itself where neither acts.

    With l a token's logit, r, f, p the repetition, frequency and presence penalty and c its count in the output (vLLM's
    order): l / r for l > 0, else l * r, if it is in prompt or output; then - f * c; then - p if c > 0. Ids outside the
    vocabulary can never be drawn and need no bar. The caller's row is left as it is.

    Args:
        row: float32 [vocab].
        params: the request's options.
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of them are the prompt.
        eos_token_ids: the model's ids that end an output.
    """
    is_too_short = len(token_ids) - num_prompt_tokens < params.min_tokens
    if not (is_too_short or params.has_penalties):
        return row
    row = row.copy()
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(token_ids, dtype=np.intp))
        old, factor = row[seen], np.float32(params.repetition_penalty)
        row[seen] = np.where(old > 0, old / factor, old * factor)
    if params.frequency_penalty or params.presence_penalty:
        output, counts = np.unique(np.asarray(token_ids[num_prompt_tokens:], dtype=np.intp), return_counts=True)
        row[output] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    if is_too_short:
        barred = np.array([*eos_token_ids, *params.stop_token_ids], dtype=np.intp)
        row[barred[(barred >= 0) & (barred < len(row))]] = -np.inf
    return row


def log_probabilities(row: Row, token_id: int, count: int) -> dict[int, float]:
    """Natural log-probability of ``token_id``, then of the ``count`` likeliest tokens, best first (lower id on a tie).

    ``row`` is float32 [vocab]. The dict has ``count`` + 1 entries, one less where the token is itself among the
    likeliest, and never more than the vocabulary.
    """
    shifted = row.astype(np.float64) - row.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    count = min(count, len(row))
    found = {token_id: float(logs[token_id])}
    if count:
        least = np.partition(row, -count)[-count]
        best = np.flatnonzero(row >= least)
        best = best[np.argsort(-row[best], kind="stable")][:count]
        found |= {int(i): float(logs[i]) for i in best}
    return found


def sample(
    logits: Sequence[Row] | NDArray[np.float32],
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
    weigh: Weigh = weigh,
) -> list[int]:
    """One token id a row.

    Args:
        logits: R rows of float32 [vocab], left as they are; -inf bars a token.
        params: options of each row.
        seeds: stream of each row (``SamplingParams.seed`` or :func:`stream_seed`).
        positions: position in its sequence of the token to be chosen; each is drawn at most once.
        weigh: computes what :func:`weigh` does.

    Raises:
        FloatingPointError: a row has NaN or +inf, or bars every token: the model, not the user, is at fault.
    """
    tokens = []
    for i, (row, options, seed, position) in enumerate(zip(logits, params, seeds, positions, strict=True)):
        greedy = int(row.argmax())
        if not math.isfinite(row[greedy]):  # argmax finds NaN and +inf first
            raise FloatingPointError(f"logits of row {i} have NaN or +inf, or bar every token")
        if options.temperature == 0.0:
            tokens.append(greedy)
        else:
            tokens.append(_draw(row, float(row[greedy]), options, uniform(seed, position), weigh))
    return tokens


def _draw(row: Row, top: float, params: SamplingParams, number: float, weigh: Weigh) -> int:
    """The token at ``number`` of the distribution that ``params`` makes of ``row``, whose largest logit is ``top``."""
    kept: NDArray[np.intp] | None = None
    if 0 < params.top_k < len(row):
        kept = _top(row, params.top_k)
        row = row[kept]
    weights = weigh(row, top, 1.0 / max(params.temperature, _LEAST_TEMPERATURE))
    if params.top_p < 1.0 or params.min_p > 0.0:
        inside = np.flatnonzero(weights >= np.float32(params.min_p)) if params.min_p > 0.0 else None
        if params.top_p < 1.0:
            nucleus = _nucleus(weights, params.top_p)
            inside = nucleus if inside is None or len(nucleus) < len(inside) else inside
        assert inside is not None
        weights = weights[inside]
        kept = inside if kept is None else kept[inside]
    index = _invert(weights, number)
    return index if kept is None else int(kept[index])


def _block_starts(length: int) -> NDArray[np.intp]:
    return np.arange(0, length, _BLOCK)


def _top(row: Row, count: int) -> NDArray[np.intp]:
    """Indices of the ``count`` largest logits, and of those that equal the last of them."""
    bests = np.maximum.reduceat(row, _block_starts(len(row)))
    candidates = np.arange(len(row))
    if count <= len(bests):  # as many blocks reach this, so the count-th largest logit does
        candidates = np.flatnonzero(row >= np.partition(bests, -count)[-count])
    values = row[candidates]
    return candidates[values >= np.partition(values, -count)[-count]]


def _nucleus(weights: Row, share: float) -> NDArray[np.intp]:
    """Indices of the smallest set that holds ``share`` of all weight, ties with its last member included."""
    total = float(np.add.reduceat(weights, _block_starts(len(weights))).sum(dtype=np.float64))
    # All tokens below (1 - share) of the mean together weigh less than 1 - share, so the set lies above. Mostly it lies
    # far above, which is tried first.
    wanted, bound = share * total, (1.0 - share) * total / len(weights)
    for factor in (64.0, 1.0):
        candidates = np.flatnonzero(weights >= np.float32(factor * bound))
        values = weights[candidates]
        ordered = np.sort(values)[::-1]
        cumulative = np.cumsum(ordered, dtype=np.float64)
        if len(ordered) and cumulative[-1] >= wanted:
            break
    least = ordered[min(int(np.searchsorted(cumulative, wanted)), len(ordered) - 1)]
    return candidates[values >= least]


def _invert(weights: Row, number: float) -> int:
    """First index where the running sum of ``weights`` passes ``number`` of their total, found by blocks of them."""
    blocks = np.cumsum(np.add.reduceat(weights, _block_starts(len(weights))), dtype=np.float64)
    target = min(number * blocks[-1], np.nextafter(blocks[-1], 0.0))
    block = int(np.searchsorted(blocks, target, side="right"))
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    cumulative = np.cumsum(inside, dtype=np.float64)
    rest = target - (blocks[block - 1] if block else 0.0)
    # Rounding of the two sums may put the rest at the very end: then it is the last token with weight.
    index = min(int(np.searchsorted(cumulative, rest, side="right")), int(np.flatnonzero(inside)[-1]))
    return block * _BLOCK + index
