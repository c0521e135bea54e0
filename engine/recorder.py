"""The engine's own tables (one row a step, a batch member, a change in number), written between steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from engine.executors.base import ScheduledBatch
from engine.tables import TableWriter

if TYPE_CHECKING:
    from engine.scheduler import Scheduler

SCHEMA_VERSION = 1
_METADATA = {"schema_version": str(SCHEMA_VERSION)}

STEPS = pa.schema(
    [
        ("step", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("schedule_s", pa.float64()),  # duration of drain and schedule inside the step
        ("idle_s", pa.float64()),  # time blocked on an empty engine before this step
        ("drained", pa.int32()),
        ("prefill_seqs", pa.int32()),
        ("decode_seqs", pa.int32()),
        ("prefill_tokens", pa.int32()),
        ("decode_tokens", pa.int32()),
        ("kv_tokens", pa.int64()),  # context read by attention, summed over the decode rows
        ("prefill_attention", pa.float64()),  # sum of q * (context + q / 2) over the prefill chunks, context before the chunk
        ("logit_rows", pa.int32()),
        ("inbox", pa.int32()),  # lengths right after scheduling
        ("waiting", pa.int32()),
        ("running", pa.int32()),
        ("free_blocks", pa.int32()),
        ("preempted", pa.int32()),
    ],
    metadata=_METADATA,
)

BATCH = pa.schema([("step", pa.int64()), ("request_id", pa.string()), ("num_tokens", pa.int32())], metadata=_METADATA)

GAUGE = pa.schema(
    [("t_s", pa.float64()), ("inbox", pa.int32()), ("waiting", pa.int32()), ("running", pa.int32())],
    metadata=_METADATA,
)


@dataclass(slots=True)
class StepRow:
    """A row of ``STEPS`` while its step goes on (field order is column order)."""

    step: int
    start_s: float
    end_s: float
    schedule_s: float
    idle_s: float
    drained: int
    prefill_seqs: int
    decode_seqs: int
    prefill_tokens: int
    decode_tokens: int
    kv_tokens: int
    prefill_attention: float
    logit_rows: int
    inbox: int
    waiting: int
    running: int
    free_blocks: int
    preempted: int

    @classmethod
    def of(
        cls, step: int, start_s: float, drained: int, idle_s: float, batch: ScheduledBatch, scheduler: Scheduler, inbox: int
    ) -> StepRow:
        """Describe a scheduled batch, before it is computed. A row of a request that has output already is a decode."""
        prefill_seqs = prefill_tokens = decode_seqs = kv_tokens = logit_rows = 0
        attention = 0.0
        for seq, num_tokens, needs_token in zip(batch.seqs, batch.num_tokens, batch.needs_token, strict=True):
            context = seq.num_computed_tokens
            logit_rows += needs_token
            if num_tokens == 1 and context >= seq.num_prompt_tokens:
                decode_seqs += 1
                kv_tokens += context + 1
            else:
                prefill_seqs += 1
                prefill_tokens += num_tokens
                attention += num_tokens * (context + num_tokens / 2)
        return cls(
            step=step,
            start_s=start_s,
            end_s=math.nan,
            schedule_s=math.nan,
            idle_s=idle_s,
            drained=drained,
            prefill_seqs=prefill_seqs,
            decode_seqs=decode_seqs,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_seqs,
            kv_tokens=kv_tokens,
            prefill_attention=attention,
            logit_rows=logit_rows,
            inbox=inbox,
            waiting=scheduler.num_waiting,
            running=scheduler.num_running,
            free_blocks=scheduler.block_manager.num_free_blocks,
            preempted=len(batch.preempted),
        )


class Recorder(Protocol):
    """Where the core reports its steps and its gauge."""

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None: ...

    def record_gauge(self, t_s: float, inbox: int, waiting: int, running: int) -> None: ...


class FileRecorder:
    """Writes ``steps``, ``batch`` and ``gauge`` of one run into its directory, a flush about once a second.

    Stamps are moved to the run's origin. ``cost_s`` adds up the time spent on recording (the gauge, which is a tuple on a
    list, is not in it).
    """

    FLUSH_EVERY_S = 1.0

    def __init__(self, directory: Path, origin_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.origin_s = origin_s
        self.cost_s = 0.0
        self._clock = clock
        self._flushed_s = clock()
        self._first_step: int | None = None
        self._steps = TableWriter(directory, "steps", STEPS)
        self._batch = TableWriter(directory, "batch", BATCH)
        self._gauge = TableWriter(directory, "gauge", GAUGE)
        self._tables = (self._steps, self._batch, self._gauge)

    def record_gauge(self, t_s: float, inbox: int, waiting: int, running: int) -> None:
        self._gauge.append((t_s - self.origin_s, inbox, waiting, running))

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None:
        began = self._clock()
        if self._first_step is None:
            self._first_step = row.step
        values = _step_values(row)
        self._steps.append((values[0], row.start_s - self.origin_s, row.end_s - self.origin_s, *values[3:]))
        self._batch.extend(
            [(row.step, seq.request_id, count) for seq, count in zip(batch.seqs, batch.num_tokens, strict=True)]
        )
        if began - self._flushed_s > self.FLUSH_EVERY_S:
            self.flush()
            self._flushed_s = began
        self.cost_s += self._clock() - began

    def flush(self) -> None:
        for table in self._tables:
            table.flush()

    def close(self) -> dict[str, Any]:
        """End the streams. Returns the row counts and the cost of recording in seconds."""
        for table in self._tables:
            table.close()
        return {"steps": self._steps.num_rows, "gauge": self._gauge.num_rows, "recording_s": self.cost_s}


_step_values = attrgetter(*STEPS.names)
