"""Scheduling policies: who goes first, who may be admitted, who is preempted.

A policy answers with a *static* key: waiting lines are heaps and never need re-sorting. Ageing that is linear in time
keeps the key static: ``value - ageing * (now - received)`` orders requests like ``value + ageing * received``. Where all
values are equal (``fcfs``, ``prefill_first``, ``static_batch``), that is the order of receipt with any ageing.
"""

from __future__ import annotations

from typing import Protocol

from engine.config import EngineConfig
from engine.sequence import Sequence


class Policy(Protocol):
    """The contract of a policy. Ties of ``key`` go to the request received first."""

    running_first: bool

    def key(self, seq: Sequence) -> float:
        """Smaller goes first; must not change while the request lives."""
        ...

    def may_admit(self, num_running: int, num_admitted: int) -> bool:
        """Whether the head of the waiting line may join; ``num_admitted`` of the running joined in this very step."""
        ...


class FCFS:
    """First come, first served, by receipt."""

    running_first = True

    def key(self, seq: Sequence) -> float:
        return 0.0

    def may_admit(self, num_running: int, num_admitted: int) -> bool:
        return True


class PrefillFirst(FCFS):
    """As FCFS, but a step's budget goes to new prompts before running requests get their next token."""

    running_first = False


class StaticBatch(FCFS):
    """As FCFS, but nobody joins a batch that has begun: the next batch starts when the last request has ended.

    A batch is formed in one step, so its budget bounds it too: room for ``max_num_seqs`` prompts fills every seat.
    """

    def may_admit(self, num_running: int, num_admitted: int) -> bool:
        return num_running == num_admitted


class PriorityPolicy(FCFS):
    """Lower ``priority`` first; ``ageing`` is the levels that a second of waiting is worth."""

    def __init__(self, ageing: float = 0.0) -> None:
        self.ageing = ageing

    def key(self, seq: Sequence) -> float:
        return _aged(seq.request.priority, self.ageing, seq)


class ShortestJobFirst(FCFS):
    """Fewest tokens first: prompt plus predicted output (the prompt alone where nothing is predicted).

    ``ageing`` is the tokens that a second of waiting is worth.
    """

    def __init__(self, ageing: float = 0.0) -> None:
        self.ageing = ageing

    def key(self, seq: Sequence) -> float:
        size = seq.num_prompt_tokens + (seq.request.predicted_output_tokens or 0)
        return _aged(size, self.ageing, seq)


def _aged(value: float, ageing: float, seq: Sequence) -> float:
    """``value`` with the head start of an early receipt; without ageing the stamp need not be there."""
    return value + ageing * seq.received_s if ageing else float(value)


def make_policy(config: EngineConfig) -> Policy:
    """The policy that ``config`` names."""
    if config.policy == "priority":
        return PriorityPolicy(config.ageing)
    if config.policy == "sjf":
        return ShortestJobFirst(config.ageing)
    return {"fcfs": FCFS, "prefill_first": PrefillFirst, "static_batch": StaticBatch}[config.policy]()
