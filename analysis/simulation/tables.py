"""The tables of a run that happens in memory: same columns and types as those a measured run writes to disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.runs import Run
from engine.executors.base import ScheduledBatch
from engine.recorder import BATCH, GAUGE, STEPS, StepRow
from workload.records import REQUESTS, TOKENS, RequestRecord

Row = tuple[Any, ...]


class MemoryRecorder:
    """Keeps steps, batches and gauge (the core's ``Recorder``). ``idle_s`` is the idle time before the next step."""

    def __init__(self) -> None:
        self.idle_s = 0.0
        self._steps: list[Row] = []
        self._members: list[list[str]] = []
        self._counts: list[list[int]] = []
        self._gauge: list[Row] = []

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None:
        if self.idle_s:
            row = row._replace(idle_s=self.idle_s)
            self.idle_s = 0.0
        self._steps.append(row)
        self._members.append([seq.request.request_id for seq in batch.seqs])
        self._counts.append(batch.num_tokens)

    def record_gauge(self, t_s: float, inbox: int, waiting: int, running: int) -> None:
        self._gauge.append((t_s, inbox, waiting, running))

    def tables(self) -> dict[str, pd.DataFrame]:
        """``steps``, ``batch`` and ``gauge``."""
        steps = np.repeat([row[0] for row in self._steps], [len(members) for members in self._members])
        batch = (steps, list(chain.from_iterable(self._members)), list(chain.from_iterable(self._counts)))
        return {
            "steps": frame(self._steps, STEPS),
            "batch": _frame_of_columns(batch, BATCH),
            "gauge": frame(self._gauge, GAUGE),
        }


def summed_gauges(gauges: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One gauge for several engines: at every change in any of them, what all of them hold."""
    numbers = ["inbox", "waiting", "running"]
    changes = [gauge.assign(**gauge[numbers].diff().fillna(gauge[numbers]).astype("int32")) for gauge in gauges]
    together = pd.concat(changes, ignore_index=True).sort_values("t_s", kind="stable", ignore_index=True)
    return together.assign(**together[numbers].cumsum().astype("int32"))


def client_tables(records: Sequence[RequestRecord]) -> dict[str, pd.DataFrame]:
    """``requests`` and ``tokens`` as the client saw them, in the order given."""
    return {
        "requests": frame([record.row(0.0) for record in records], REQUESTS),
        "tokens": frame([(record.request_id, record.token_s) for record in records], TOKENS),
    }


def frame(rows: Sequence[Row], schema: pa.Schema) -> pd.DataFrame:
    """Rows in the schema's order as the DataFrame that reading them from disk would give."""
    return _frame_of_columns(list(zip(*rows, strict=True)) or [()] * len(schema), schema)


def _frame_of_columns(columns: Sequence[Any], schema: pa.Schema) -> pd.DataFrame:
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    table: pd.DataFrame = pa.Table.from_arrays(arrays, schema=schema).to_pandas()
    return table


def memory_run(tables: Mapping[str, pd.DataFrame], meta: Mapping[str, Any]) -> Run:
    """The run made of these tables."""
    return Run.from_tables(**tables, meta=meta)
