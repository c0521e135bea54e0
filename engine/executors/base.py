"""The one contract between the core and whatever computes (or pretends to compute) a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.sequence import Sequence


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


class Executor(Protocol):
    """Computes a step.

    ``execute`` returns one token id for every sequence with ``needs_token``, in batch order, and the step's duration in
    seconds: measured where time really passed, modelled where the clock is virtual.
    """

    block_size: int
    num_kv_blocks: int
    max_model_len: int

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]: ...

    def forget(self, request_id: str) -> None:
        """Drop whatever is kept for a request that has ended (a sampling stream, a drawn length)."""
        ...
