"""Runs prompts through the real scheduler and core under one setting and keeps every logit, to be held against an oracle.

Shared by the suite's quick covering array and the long ``benchmarks/correctness.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.base import ScheduledBatch
from engine.executors.model import ModelExecutor
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request, Sequence
from engine.weights.checkpoint import Checkpoint
from tests.engine.model_driver import TIE

LARGEST, MEAN = 2e-3, 1e-4  # what logits may differ by
WHOLE = 1 << 20  # a chunk that takes every prompt whole
CHUNKS, BLOCKS, BATCHES = (1, 7, 64, WHOLE), (1, 3, 16, 256), (1, 3, 8)


class Setting(NamedTuple):
    """One way to run the same requests; none may change their tokens."""

    chunk: int
    block_size: int
    batch: int
    caching: bool
    preempt: bool
    attention: str = "sdpa"

    def __str__(self) -> str:
        chunk = "all" if self.chunk == WHOLE else str(self.chunk)
        cache, preempted = "on" if self.caching else "off", "forced" if self.preempt else "none"
        return f"{self.attention:9} {chunk:>5} {self.block_size:>5} {self.batch:>5} {cache:>5} {preempted:>7}"


def factorial(attention: str) -> list[Setting]:
    """Every combination under one attention back end."""
    return [Setting(*each, attention) for each in product(CHUNKS, BLOCKS, BATCHES, (True, False), (True, False))]


def covering_array(*levels: Items[Any]) -> list[tuple[Any, ...]]:
    """Few rows in which every two levels of every two factors meet (greedy: the row with most new pairs first)."""
    pairs = list(combinations(range(len(levels)), 2))
    every = [tuple(row) for row in product(*(range(len(values)) for values in levels))]
    missing = {(i, j, a, b) for i, j in pairs for a in range(len(levels[i])) for b in range(len(levels[j]))}
    rows = []
    while missing:
        best = max(every, key=lambda row: sum((i, j, row[i], row[j]) in missing for i, j in pairs))
        missing -= {(i, j, best[i], best[j]) for i, j in pairs}
        rows.append(tuple(values[index] for values, index in zip(levels, best, strict=True)))
    return rows


class TrialScheduler(Scheduler):
    """The real scheduler, with a chunk per sequence, and forced preemptions if asked for.

    Those send every request back twice: in the middle of its prompt, where a step leaves it unfinished, and after its
    third token. The cache then has two blocks more than the longest request needs, so others give way by themselves.
    """

    def __init__(self, setting: Setting, num_kv_blocks: int, max_model_len: int) -> None:
        config = EngineConfig(
            max_num_seqs=setting.batch,
            max_num_batched_tokens=WHOLE,
            enable_prefix_caching=setting.caching,
            watermark=0.0,
        )
        super().__init__(config, num_kv_blocks, setting.block_size, max_model_len)
        self._setting = setting
        self._sent: set[tuple[str, int]] = set()

    def schedule(self) -> ScheduledBatch:
        victim = next((seq for seq in reversed(self.running) if self._is_due(seq)), None)
        if victim is not None:
            self._sent.add((victim.request_id, victim.num_output_tokens))
            self.preemptions += 1
            self._send_back(victim)
        return super().schedule()

    def _is_due(self, seq: Sequence) -> bool:
        key = (seq.request_id, seq.num_output_tokens)
        return self._setting.preempt and seq.num_output_tokens in (0, 3) and key not in self._sent

    def _give(self, seq: Sequence, num_tokens: int, batch: ScheduledBatch) -> int:
        return super()._give(seq, min(num_tokens, self._setting.chunk), batch)


class RecordingExecutor(ModelExecutor):
    """Keeps the logits of every token that it chose."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(runner)
        self.rows: dict[str, list[torch.Tensor]] = defaultdict(list)

    def _choose(self, logits: NDArray[np.float32], seqs: list[Sequence]) -> list[int]:
        for seq, row in zip(seqs, logits, strict=True):
            self.rows[seq.request_id].append(torch.from_numpy(row.copy()))
        return super()._choose(logits, seqs)


@dataclass(frozen=True)
class Trial:
    """What came out: tokens (prompt and output) and logits [steps, vocab] of each prompt, and what happened on the way."""

    token_ids: list[list[int]]
    logits: list[torch.Tensor]
    preemptions: int
    hit_tokens: int


def blocks_needed(setting: Setting, prompts: Items[Items[int]], steps: int) -> int:
    """KV blocks of a cache that never runs short, or under forced preemption of one that does."""
    sizes = sorted((-(-(len(prompt) + steps) // setting.block_size) for prompt in prompts), reverse=True)
    return sizes[0] + 2 if setting.preempt else sum(sizes[: setting.batch])


def make_runner(checkpoint: Checkpoint, setting: Setting, prompts: Items[Items[int]], steps: int) -> ModelRunner:
    """A float32 torch runner with the setting's cache."""
    return ModelRunner(
        checkpoint, blocks_needed(setting, prompts, steps), setting.block_size, attention=setting.attention
    )


def run_trial(runner: ModelRunner, setting: Setting, prompts: Items[Items[int]], steps: int) -> Trial:
    """Greedy outputs of ``steps`` tokens for every prompt, all handed in at once."""
    scheduler = TrialScheduler(
        setting, min(runner.num_kv_blocks, blocks_needed(setting, prompts, steps)), runner.max_model_len
    )
    executor = RecordingExecutor(runner)
    core = EngineCore(scheduler, executor)
    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    seqs = [core.add(Request(str(i), list(prompt), params)) for i, prompt in enumerate(prompts)]
    while core.has_work:
        core.step()
    assert scheduler.block_manager.num_used_blocks == 0
    logits = [torch.stack(executor.rows[seq.request_id]) for seq in seqs]
    return Trial([seq.token_ids for seq in seqs], logits, scheduler.preemptions, scheduler.block_manager.hit_tokens)


@dataclass
class Tally:
    """Differences from the oracle, added up. A tie is a step whose two largest oracle logits are within ``TIE``."""

    prompts: int = 0
    steps: int = 0
    ties: int = 0
    other_tokens: int = 0
    tied_other_tokens: int = 0
    largest: float = 0.0
    total: float = 0.0
    values: int = 0
    preemptions: int = field(default=0, kw_only=True)
    hit_tokens: int = field(default=0, kw_only=True)

    def add(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        """One prompt's logits [steps, vocab]; the oracle was given the engine's own tokens (teacher-forced)."""
        difference = (got - expected).abs()
        top_two = expected.topk(2, dim=-1).values
        tied = (top_two[:, 0] - top_two[:, 1]) < TIE
        other = got.argmax(-1) != expected.argmax(-1)
        self.prompts += 1
        self.steps += len(got)
        self.ties += int(tied.sum())
        self.other_tokens += int((other & ~tied).sum())
        self.tied_other_tokens += int((other & tied).sum())
        self.largest = float(np.maximum(self.largest, float(difference.max())))  # keeps a NaN
        self.total += float(difference.sum(dtype=torch.float64))
        self.values += difference.numel()

    @property
    def mean(self) -> float:
        return self.total / max(self.values, 1)

    @property
    def passes(self) -> bool:
        return self.steps > 0 and not self.other_tokens and self.largest <= LARGEST and self.mean <= MEAN
