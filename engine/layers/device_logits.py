"""What is done to whole rows of logits on the device besides the draw: penalties and barred ids before it, and the
log-probabilities that requests ask for. What they mean is said in ``sampler.py`` (``adjust``, ``log_probabilities``).

No loop over rows: the known tokens of all rows with penalties lie in one flat array, are counted by one scatter, and change
the logits at their places alone. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling_params import SamplingParams
from engine.transfer import move


@dataclass(frozen=True)
class Adjustments:
    """Of the P rows with penalties among a step's R rows of logits, which know N tokens together:

    Attributes:
        rows: int64 [P], ascending.
        repetition: float32 [P]; ``frequency``, ``presence``: float64 [P].
        lengths, prompt_lengths: int64 [P], known tokens of each row, and how many of them are its prompt.
        token_ids: int32 [N], row after row.
        barred: int64 [B], ``row * vocab + id`` of every id that may not be drawn yet, in any of the R rows.
    """

    rows: NDArray[np.int64]
    repetition: NDArray[np.float32]
    frequency: NDArray[np.float64]
    presence: NDArray[np.float64]
    lengths: NDArray[np.int64]
    prompt_lengths: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    barred: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        token_ids: Sequence[NDArray[np.int32]],
        output_lengths: Sequence[int],
        eos_token_ids: Sequence[Collection[int]],
        vocab_size: int,
    ) -> Adjustments:
        """From each row's options, prompt and output so far (read where there are penalties), length of the output and ids
        that end one."""
        rows = [i for i, each in enumerate(params) if each.has_penalties]
        known = [token_ids[i] for i in rows]
        barred = [
            i * vocab_size + token_id
            for i, each in enumerate(params)
            if output_lengths[i] < each.min_tokens
            for token_id in (*eos_token_ids[i], *each.stop_token_ids)
            if 0 <= token_id < vocab_size
        ]
        return cls(
            np.array(rows, dtype=np.int64),
            np.array([params[i].repetition_penalty for i in rows], dtype=np.float32),
            np.array([params[i].frequency_penalty for i in rows], dtype=np.float64),
            np.array([params[i].presence_penalty for i in rows], dtype=np.float64),
            np.array([len(tokens) for tokens in known], dtype=np.int64),
            np.array([len(token_ids[i]) - output_lengths[i] for i in rows], dtype=np.int64),
            np.concatenate([np.empty(0, dtype=np.int32), *known]),
            np.array(barred, dtype=np.int64),
        )


def adjusted(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """``logits`` float32 [R, vocab] with penalties and bars, bit for bit as ``sampler.adjust``; itself where none acts."""
    if not len(adjustments.rows) and not len(adjustments.barred):
        return logits
    changed = logits.clone(memory_format=torch.contiguous_format)
    if len(adjustments.token_ids):
        _penalize(changed, adjustments)
    if len(adjustments.barred):
        changed.view(-1).index_fill_(0, move(adjustments.barred, logits.device), float("-inf"))
    return changed


def _penalize(logits: Tensor, adjustments: Adjustments) -> None:
    """Change the logits of the known tokens in place. A token known several times is written several times, each time the
    same."""
    device, vocab = logits.device, logits.shape[1]
    row, repetition, frequency, presence, lengths, prompts, tokens = (
        move(array, device)
        for array in (
            adjustments.rows, adjustments.repetition, adjustments.frequency, adjustments.presence,
            adjustments.lengths, adjustments.prompt_lengths, adjustments.token_ids,
        )
    )  # fmt: skip
    count, total = len(row), len(tokens)
    owner = torch.repeat_interleave(torch.arange(count, device=device), lengths, output_size=total)
    outputs_from = (lengths.cumsum(0) - lengths + prompts)[owner]
    is_output = torch.arange(total, device=device) >= outputs_from
    place = owner * vocab + tokens
    counts = torch.zeros(count * vocab, dtype=torch.int32, device=device)
    counts.scatter_add_(0, place, is_output.int())
    times = counts.gather(0, place).double()
    index = row[owner] * vocab + tokens
    old, factor = logits.view(-1).gather(0, index), repetition[owner]
    taken_off = torch.where(times > 0, frequency[owner] * times + presence[owner], 0.0).float()
    logits.view(-1).scatter_(0, index, torch.where(old > 0, old / factor, old * factor) - taken_off)


def log_probabilities(logits: Tensor, token_ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids int64 and natural log-probabilities float64, both [R, 1 + ``count``]: the row's own token, then the likeliest ones,
    best first (lower id on a tie).

    Args:
        logits: float32 [R, vocab].
        token_ids: int64 [R]; of a row without a token (-1) the numbers mean nothing.
        count: at most the vocabulary.
    """
    logs = logits.double() - logits.amax(dim=-1, keepdim=True)
    logs -= logs.exp().sum(dim=-1, keepdim=True).log()
    # A float's bits, seen as an integer, keep its order (below zero after a turn); the id makes every key another one.
    bits = (logits + 0.0).view(torch.int32).long()
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (order << 32) - torch.arange(logits.shape[1], device=logits.device)
    ids = torch.cat((token_ids.clamp(min=0)[:, None], keys.topk(count, dim=-1).indices), dim=1)
    return ids, logs.gather(1, ids)
