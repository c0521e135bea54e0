"""The one contract between the core and whatever computes (or pretends to compute) a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.sequence import Sequence


class BatchShape(NamedTuple):
    """What a step's duration depends on. A row of a request that has output already is a decode, all others prefill.

    ``kv_tokens`` is the context that the decode rows read; ``prefill_attention`` the sum of q * (context + q / 2) over
    the prefill chunks of q tokens, context counted before the chunk; ``logit_rows`` the rows that need logits.
    """

    prefill_seqs: int
    decode_seqs: int
    prefill_tokens: int
    decode_tokens: int
    kv_tokens: int
    prefill_attention: float
    logit_rows: int


@dataclass(slots=True)
class ScheduledBatch:
    """What one step computes, in batch order.

    ``seqs[i]`` computes ``num_tokens[i]`` tokens from ``seqs[i].num_computed_tokens`` on; the scheduler has already
    given it the blocks for them. ``needs_token[i]`` says that this closes the gap, so that the step's logits for its
    last token give the next one. ``admitted`` and ``preempted`` are what the scheduler decided on the way.
    """

    seqs: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    needs_token: list[bool] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    _shape: BatchShape | None = None

    def shape(self) -> BatchShape:
        """The batch's shape. First asked for when it has been scheduled and not yet computed; it stays what it was then."""
        if self._shape is None:
            self._shape = self._measure()
        return self._shape

    def _measure(self) -> BatchShape:
        prefill_seqs = prefill_tokens = decode_seqs = kv_tokens = 0
        attention = 0.0
        for seq, num_tokens in zip(self.seqs, self.num_tokens, strict=True):
            context = seq.num_computed_tokens
            if num_tokens == 1 and context >= seq.num_prompt_tokens:
                decode_seqs += 1
                kv_tokens += context + 1
            else:
                prefill_seqs += 1
                prefill_tokens += num_tokens
                attention += num_tokens * (context + num_tokens / 2)
        return BatchShape(
            prefill_seqs, decode_seqs, prefill_tokens, decode_seqs, kv_tokens, attention, sum(self.needs_token)
        )


class Executor(Protocol):
    """Computes a step.

    ``execute`` returns one token id for every sequence with ``needs_token``, in batch order, and the step's duration in
    seconds: measured where time really passed, modelled where the clock is virtual. ``vocab_size`` is the length of a row
    of logits, ``None`` for an executor that has none.
    """

    block_size: int
    num_kv_blocks: int
    max_model_len: int
    vocab_size: int | None

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]: ...

    def forget(self, request_id: str) -> None:
        """Drop whatever is kept for a request that has ended (a sampling stream, a drawn length)."""
        ...
