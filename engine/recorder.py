"""The engine's own tables (one row a step, a batch member, a change in number), written between steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from engine.executors.base import ScheduledBatch
from engine.tables import TableWriter

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
        (
            "prefill_attention",
            pa.float64(),
        ),  # sum of q * (context + q / 2) over the prefill chunks, context before the chunk
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


class StepRow(NamedTuple):
    """A row of ``STEPS``, in the order of its columns."""

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
        self._steps = TableWriter(directory, "steps", STEPS)
        self._batch = TableWriter(directory, "batch", BATCH)
        self._gauge = TableWriter(directory, "gauge", GAUGE)
        self._tables = (self._steps, self._batch, self._gauge)

    def record_gauge(self, t_s: float, inbox: int, waiting: int, running: int) -> None:
        self._gauge.append((t_s - self.origin_s, inbox, waiting, running))

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None:
        began = self._clock()
        self._steps.append(row._replace(start_s=row.start_s - self.origin_s, end_s=row.end_s - self.origin_s))
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
