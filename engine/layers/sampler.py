"""Chooses the next token of every row: greedy, or drawn after temperature, top-k, top-p and min-p, in that order.

The filters mean what transformers' logits warpers of the same names mean (ties with the last token kept are kept).
Each draw inverts the distribution at one uniform number from a counter-based generator (Philox, Salmon et al. 2011)
keyed by the request's seed and counted by the token's position, so that a request draws the same numbers in any batch
and after any preemption, and no state is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.sampling_params import SamplingParams

# Sorting a whole vocabulary costs more than a small model's step; this many tokens nearly always hold the nucleus.
_NUCLEUS_TRY = 256


def stream_seed(engine_seed: int, request_id: str) -> int:
    """The 128-bit seed of a request that gave none: from the engine's seed and the request's id."""
    return int.from_bytes(hashlib.sha256(f"{engine_seed}/{request_id}".encode()).digest()[:16], "little")


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at ``position`` of the stream ``seed``."""
    bits = np.random.Philox(key=seed % (1 << 128), counter=position)
    return float(np.random.Generator(bits).random())


def sample(
    logits: Tensor, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int]
) -> list[int]:
    """One token id a row.

    Args:
        logits: float32 [R, vocab]; -inf bars a token.
        params: options of each row.
        seeds: stream of each row (``SamplingParams.seed`` or :func:`stream_seed`).
        positions: position in its sequence of the token to be chosen; each is drawn at most once.

    Raises:
        FloatingPointError: a row has NaN, or no token that is allowed: the model, not the user, is at fault.
    """
    tops, greedy = logits.max(dim=-1)
    if not bool(torch.isfinite(tops).all()):
        rows = torch.nonzero(~torch.isfinite(tops)).flatten().tolist()
        raise FloatingPointError(f"logits of rows {rows} have NaN or +inf, or bar every token")
    tokens: list[int] = greedy.tolist()
    drawn = [row for row, options in enumerate(params) if options.temperature > 0.0]
    if drawn:
        chosen = [params[row] for row in drawn]
        uniforms = [uniform(seeds[row], positions[row]) for row in drawn]
        whole = len(drawn) == len(params)
        shifted = logits - tops[:, None] if whole else logits[drawn] - tops[drawn, None]
        for row, token in zip(drawn, _draw(shifted, chosen, uniforms), strict=True):
            tokens[row] = token
    return tokens


def _draw(shifted: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """Tokens of rows with a temperature; ``shifted`` [R, vocab] are logits whose largest is 0 (overwritten)."""
    device = shifted.device
    # Below float32's smallest normal number every temperature is the same: all weight on the largest logit.
    tiny = float(np.finfo(np.float32).tiny)
    temperature = torch.tensor([max(row.temperature, tiny) for row in params], device=device)
    scaled = shifted.div_(temperature[:, None])
    floor = _floor(scaled, params)
    if floor is not None:
        scaled.masked_fill_(scaled < floor[:, None], float("-inf"))
    # Double precision, so that the last of many small probabilities are not lost in the running sum.
    cumulative = scaled.exp_().cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    targets = torch.tensor(uniforms, dtype=torch.float64, device=device)[:, None] * total
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    tokens: list[int] = torch.searchsorted(cumulative, targets, right=True).flatten().tolist()
    return tokens


def _floor(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor | None:
    """The smallest scaled logit that each row's filters keep, [R]; ``None`` where no row filters."""
    vocab = scaled.shape[1]
    floor = torch.full((len(params),), float("-inf"), device=scaled.device)
    with_k = [row for row, options in enumerate(params) if 0 < options.top_k < vocab]
    with_p = [row for row, options in enumerate(params) if options.top_p < 1.0]
    with_min = [row for row, options in enumerate(params) if options.min_p > 0.0]
    if not (with_k or with_p or with_min):
        return None
    if with_k:
        counts = torch.tensor([params[row].top_k for row in with_k], device=scaled.device)
        ordered = scaled[with_k].topk(int(counts.max()), dim=-1).values
        floor[with_k] = ordered.gather(1, counts[:, None] - 1).flatten()
    if with_p:
        shares = torch.tensor([params[row].top_p for row in with_p], dtype=torch.float64, device=scaled.device)
        floor[with_p] = _nucleus_floor(scaled[with_p], floor[with_p], shares)
    if with_min:
        least = torch.tensor([params[row].min_p for row in with_min], dtype=torch.float64, device=scaled.device).log()
        floor[with_min] = torch.maximum(floor[with_min], least.float())
    return floor


def _nucleus_floor(scaled: Tensor, floor: Tensor, shares: Tensor) -> Tensor:
    """Smallest logit of the smallest set that holds ``shares`` [R] of what lies at or above ``floor`` [R]."""
    weights = scaled.exp().masked_fill_(scaled < floor[:, None], 0.0)
    goals = shares * weights.sum(dim=-1, dtype=torch.float64)
    vocab = scaled.shape[1]
    for size in dict.fromkeys((min(_NUCLEUS_TRY, vocab), vocab)):
        ordered = scaled.topk(size, dim=-1).values
        kept = ordered.exp().masked_fill_(ordered < floor[:, None], 0.0)
        cumulative = kept.cumsum(dim=-1, dtype=torch.float64)
        if size == vocab or bool((cumulative[:, -1] >= goals).all()):
            before = (cumulative < goals[:, None]).sum(dim=-1)
            last = torch.minimum(before, (kept > 0).sum(dim=-1) - 1)
            return ordered.gather(1, last[:, None]).flatten()
    raise AssertionError("the whole vocabulary holds every share")
