"""Drives a runner with hand-made steps: prompts in chunks, several sequences a step, blocks scattered over the cache."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.executors.base import ScheduledBatch
from engine.model_input import build_model_input
from engine.sequence import Request, Sequence

TIE = 2e-3  # of the oracle's two largest logits: closer, and either token is right


@dataclass
class Driver:
    """Gives each sequence blocks from a shuffled pool and runs its tokens ``chunk`` at a time."""

    runner: Any
    chunk: int = 1 << 30
    pool: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = np.random.default_rng(7).permutation(self.runner.num_kv_blocks).tolist()

    def start(self, token_ids: Items[int], shared: Sequence | None = None, shared_blocks: int = 0) -> Sequence:
        """A sequence that may begin with another one's computed blocks, as after a prefix hit."""
        seq = Sequence.from_request(Request(f"r{len(self.pool)}", list(token_ids)))
        if shared is not None:
            seq.block_table = shared.block_table[:shared_blocks]
            seq.num_computed_tokens = shared_blocks * self.runner.block_size
        return seq

    def step(self, seqs: Items[Sequence]) -> list[torch.Tensor | None]:
        """Compute the next chunk of each sequence; the last row's logits of those that have caught up."""
        counts = [min(self.chunk, seq.num_uncomputed_tokens) for seq in seqs]
        needs = [count == seq.num_uncomputed_tokens for seq, count in zip(seqs, counts, strict=True)]
        for seq, count in zip(seqs, counts, strict=True):
            blocks = -(-(seq.num_computed_tokens + count) // self.runner.block_size)
            while len(seq.block_table) < blocks:
                seq.block_table.append(self.pool.pop())
        batch = ScheduledBatch(list(seqs), counts, needs)
        logits = iter(torch.as_tensor(self.runner.forward(build_model_input(batch, self.runner.block_size))).clone())
        for seq, count in zip(seqs, counts, strict=True):
            seq.num_computed_tokens += count
        return [next(logits) if need else None for need in needs]

    def run(self, seqs: Items[Sequence], steps: int, forced: Items[Items[int]] | None = None) -> list[torch.Tensor]:
        """Logits [steps, vocab] of each sequence; each step adds the ``forced`` token, or else the likeliest."""
        rows: list[list[torch.Tensor]] = [[] for _ in seqs]
        while any(len(found) < steps for found in rows):
            active = [i for i, found in enumerate(rows) if len(found) < steps]
            for i, logits in zip(active, self.step([seqs[i] for i in active]), strict=True):
                if logits is None:
                    continue
                step = len(rows[i])
                rows[i].append(logits)
                seqs[i].token_ids.append(int(logits.argmax()) if forced is None else forced[i][step])
        return [torch.stack(found) for found in rows]


def oracle_logits(model: Any, token_ids: Items[int], prompt_tokens: int) -> torch.Tensor:
    """transformers' logits for every token after the prompt, in one pass, [len - prompt, vocab]."""
    wanted = len(token_ids) - prompt_tokens + 1
    with torch.inference_mode():
        logits = model(torch.tensor([list(token_ids)]), logits_to_keep=wanted).logits[0].float()
    return logits[:-1]


def check_against_oracle(got: torch.Tensor, expected: torch.Tensor) -> int:
    """Logits within 2e-3 (1e-4 on average) and the same likeliest token; returns how many ties were left out."""
    difference = (got - expected).abs()
    assert difference.max() <= 2e-3, f"largest difference of logits {difference.max():.2e}"
    assert difference.mean() <= 1e-4, f"mean difference of logits {difference.mean():.2e}"
    top_two = expected.topk(2, dim=-1).values
    tied = (top_two[:, 0] - top_two[:, 1]) < TIE
    same = got.argmax(-1) == expected.argmax(-1)
    assert bool((same | tied).all()), f"other token than the oracle in steps {torch.nonzero(~(same | tied)).flatten()}"
    return int(tied.sum())
