"""Is the simulated schedule the real one? Time is taken out: each measured step is scheduled again with what it had seen.

Receipts, step boundaries, lengths and aborts come from the run, everything else from the engine's own core. What is left to
differ is the schedule itself: who computes how many tokens in which step, who is preempted, how many blocks stay free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.runs import Run
from analysis.simulation.facts import EngineFacts
from analysis.simulation.offers import answers_of, requests_of
from analysis.simulation.replica import END_TOKEN
from analysis.simulation.tables import MemoryRecorder
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor

SAME_STEP = (
    "drained",
    "prefill_seqs",
    "decode_seqs",
    "prefill_tokens",
    "kv_tokens",
    "prefill_attention",
    "logit_rows",
    "waiting",
    "running",
    "free_blocks",
    "preempted",
)


@dataclass(frozen=True)
class ScheduleComparison:
    """``steps`` compared, ``different`` of them not equal; ``differences`` has a row (step, column, measured, simulated) for
    each value that differs."""

    steps: int
    different: int
    differences: pd.DataFrame

    @property
    def equal(self) -> bool:
        return self.different == 0

    def __str__(self) -> str:
        if self.equal:
            return f"{self.steps} steps, all scheduled as measured"
        row = self.differences.iloc[0]
        return (
            f"{self.different} of {self.steps} steps scheduled otherwise than measured; first step {row['step']}: "
            f"{row['column']} {row['measured']} measured, {row['simulated']} simulated"
        )


def replay_schedule(run: Run, engine: EngineFacts | Run | Mapping[str, Any] | None = None) -> ScheduleComparison:
    """Schedule every step of ``run`` again and compare it with what was measured, up to the end of the run.

    Raises:
        ValueError: the run has no steps or batches, facts of its engine are missing (see :class:`EngineFacts`), or it used
            its prefix cache without recording its prompts.
    """
    for name in ("steps", "batch"):
        if not run.recorded(name):
            raise ValueError(f"the run has no table {name!r}: its schedule was not recorded")
    facts = engine if isinstance(engine, EngineFacts) else EngineFacts.of(run if engine is None else engine)
    end_s = float((run.meta.get("window") or {}).get("end_s", np.inf))
    measured = run.steps[run.steps["start_s"] < end_s]
    return _compare(run, measured, _Replay(run, facts).steps(measured))


class _Replay:
    """The core, stepped from the outside on a clock that is set to the measured stamps."""

    def __init__(self, run: Run, facts: EngineFacts) -> None:
        self._now_s = 0.0
        rows, requests, stops = requests_of(run)
        executor = SimulatedExecutor(
            lambda shape: 0.0,
            PlaceholderTokens(stops, END_TOKEN, answers_of(rows, requests)),
            block_size=facts.block_size,
            num_kv_blocks=facts.num_kv_blocks,
            max_model_len=facts.max_model_len,
        )
        self._core = EngineCore(
            facts.scheduler(), executor, eos_token_ids=frozenset([END_TOKEN]), clock=lambda: self._now_s
        )
        self._recorder = MemoryRecorder()
        seen = rows["visible_step"].to_numpy() >= 0
        received = zip(rows["visible_step"], rows["received_s"], requests, seen, strict=True)
        kept = [(int(step), when, request) for step, when, request, is_seen in received if is_seen]
        self._receipts = deque(sorted(kept, key=lambda item: item[:2]))
        cut = rows[rows["finish_reason"].isin(["aborted", "timeout"])].sort_values("done_s", kind="stable")
        self._aborts = deque(zip(cut["done_s"], cut["request_id"], strict=True))

    def steps(self, measured: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """The tables ``steps`` and ``batch`` of the replay; it stops at a step for which nothing is left to do."""
        core = self._core
        core.record_to(self._recorder)
        core.scheduler.num_steps = int(measured["step"].iloc[0]) if len(measured) else 0
        columns = (measured[name].tolist() for name in ("step", "start_s", "end_s"))
        for step, start_s, end_s in zip(*columns, strict=True):
            while self._receipts and self._receipts[0][0] <= step:
                _, self._now_s, request = self._receipts.popleft()
                core.add(request)
            while self._aborts and self._aborts[0][0] <= start_s:
                core.abort(self._aborts.popleft()[1])
            self._now_s = start_s
            _, batch = core.begin_step()
            if batch is None:
                break
            token_ids, _ = core.executor.execute(batch)
            self._now_s = end_s
            core.finish_step(batch, token_ids)
        return self._recorder.tables()


def _compare(run: Run, measured: pd.DataFrame, replayed: Mapping[str, pd.DataFrame]) -> ScheduleComparison:
    left = measured.set_index("step")[list(SAME_STEP)]
    left["batch"] = _members(run.batch).reindex(left.index)
    right = replayed["steps"].set_index("step")[list(SAME_STEP)]
    right["batch"] = _members(replayed["batch"])
    right = right.reindex(left.index)
    unequal = left.ne(right)
    # a float sum may be taken in another order
    unequal["prefill_attention"] = ~np.isclose(left["prefill_attention"], right["prefill_attention"].astype(float))
    where = np.argwhere(unequal.to_numpy())
    names = list(left.columns)
    differences = pd.DataFrame(
        [(left.index[i], names[j], left.iat[i, j], right.iat[i, j]) for i, j in where],
        columns=["step", "column", "measured", "simulated"],
    )
    return ScheduleComparison(len(left), int(unequal.any(axis=1).sum()), differences)


def _members(batch: pd.DataFrame) -> pd.Series:
    """What each step computed as one text: ``id:tokens`` in batch order."""
    member = batch["request_id"].astype(str) + ":" + batch["num_tokens"].astype(int).astype(str)
    return member.groupby(batch["step"]).agg(" ".join)
