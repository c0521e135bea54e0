"""A recorded run as tables: what the client saw of each request, what the engine did in each step.

A finished run holds Parquet files. One that was interrupted may still hold the Arrow streams it was writing, the last
message cut short: all complete batches are read and ``Run.partial`` says so. Formats: ``workload/records.py`` and
``engine/recorder.py``; simulators build the same object in memory with ``Run.from_tables``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine import recorder
from workload import records

RUN_JSON = "run.json"
KNOWN_VERSION = {  # the version of each table this reader understands
    "requests": records.SCHEMA_VERSION,
    "tokens": records.SCHEMA_VERSION,
    "prompts": records.SCHEMA_VERSION,
    "steps": recorder.SCHEMA_VERSION,
    "batch": recorder.SCHEMA_VERSION,
    "gauge": recorder.SCHEMA_VERSION,
}
SCHEMAS: Mapping[str, pa.Schema] = {
    "requests": records.REQUESTS,
    "tokens": records.TOKENS,
    "prompts": records.PROMPTS,
    "steps": recorder.STEPS,
    "batch": recorder.BATCH,
    "gauge": recorder.GAUGE,
}
_META_VERSION = 1
# A table is of no use without these; any other column that was not recorded is filled with nulls.
_ESSENTIAL = {
    "requests": ("request_id", "intended_s"),
    "tokens": ("request_id", "token_s"),
    "prompts": ("request_id",),
    "steps": ("step", "start_s", "end_s"),
    "batch": ("step", "request_id"),
    "gauge": ("t_s", "inbox", "waiting", "running"),
}


class Run:
    """One run: ``.requests .steps .batch .gauge .tokens .prompts`` (DataFrames, read on first use) and ``.meta``.

    Times are seconds since the run's origin; nan means "did not happen". A table that was not recorded is empty with
    the right columns; ``recorded(name)`` tells the two apart. ``path`` is None for a run that lives in memory.
    """

    def __init__(
        self, meta: Mapping[str, Any], path: Path | None = None, tables: Mapping[str, pd.DataFrame] | None = None
    ):
        self.meta = dict(meta)
        self.path = path
        self._given = dict(tables or {})

    @classmethod
    def from_tables(
        cls,
        requests: pd.DataFrame,
        steps: pd.DataFrame | None = None,
        batch: pd.DataFrame | None = None,
        gauge: pd.DataFrame | None = None,
        tokens: pd.DataFrame | None = None,
        prompts: pd.DataFrame | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Run:
        """A run in memory. Columns may be a subset of the schema's; what is missing reads as null."""
        given = {
            "requests": requests,
            "steps": steps,
            "batch": batch,
            "gauge": gauge,
            "tokens": tokens,
            "prompts": prompts,
        }
        conformed = {
            name: _conform(table, name, "a table in memory") for name, table in given.items() if table is not None
        }
        return cls(meta or {}, tables=conformed)

    def recorded(self, name: str) -> bool:
        """Whether the table was recorded at all (an HTTP server, for one, has no gauge)."""
        if name not in SCHEMAS:
            raise ValueError(f"no table is called {name!r}; there are {', '.join(SCHEMAS)}")
        return name in self._given or (self.path is not None and _table_file(self.path, name) is not None)

    @cached_property
    def partial(self) -> bool:
        """True when some table was never closed: the run was interrupted, or is still going on."""
        return self.path is not None and any((self.path / f"{name}.arrows").exists() for name in SCHEMAS)

    @property
    def status(self) -> str:
        """``complete``, ``interrupted`` or ``failed``, as the run itself recorded it; partial tables overrule it."""
        stated = str(self.meta.get("status", "complete"))
        return "interrupted" if self.partial and stated == "complete" else stated

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request (``workload/records.py``: REQUESTS)."""
        return self._table("requests")

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """The client's stamp of each output token: request_id, token_s (an array a row)."""
        return self._table("tokens")

    @cached_property
    def prompts(self) -> pd.DataFrame:
        """The token ids of each prompt, where they were kept."""
        return self._table("prompts")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row an engine step (``engine/recorder.py``: STEPS)."""
        return self._table("steps")

    @cached_property
    def batch(self) -> pd.DataFrame:
        """What each step computed: step, request_id, num_tokens."""
        return self._table("batch")

    @cached_property
    def gauge(self) -> pd.DataFrame:
        """Numbers in inbox, waiting and running at every change; each row holds until the next."""
        return self._table("gauge")

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The requests of the measure phase (all of them where no phase was recorded)."""
        phase = self.requests["phase"]
        return self.requests if phase.isna().all() else self.requests[phase == "measure"]

    @cached_property
    def window(self) -> tuple[float, float]:
        """Start and end of the measure phase, in seconds.

        As recorded in ``meta["window"]``; where nothing was recorded, from the first to the last intended arrival of
        the measured requests.
        """
        recorded = self.meta.get("window") or {}
        start, end = recorded.get("measure_start_s"), recorded.get("measure_end_s")
        if start is not None and end is not None:
            return float(start), float(end)
        intended = self.measured["intended_s"].to_numpy(dtype=float)
        if intended.size == 0:
            raise ValueError("the run has neither measured requests nor a recorded measure window")
        first, last = float(np.min(intended)), float(np.max(intended))
        return (first if start is None else float(start)), (last if end is None else float(end))

    def _table(self, name: str) -> pd.DataFrame:
        if name in self._given:
            return self._given[name]
        file = None if self.path is None else _table_file(self.path, name)
        if file is None:
            return _to_frame(SCHEMAS[name].empty_table())
        table = pq.read_table(file) if file.suffix == ".parquet" else read_stream(file)
        if table is None:  # killed before the stream's own schema was on disk
            return _to_frame(SCHEMAS[name].empty_table())
        _check_version(table.schema, name, file)
        return _conform(_to_frame(table), name, str(file))

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"Run({where}, {len(self.requests)} requests, {self.status})"


def open_run(directory: str | Path) -> Run:
    """The run in ``directory``. Tables are read when first used.

    Raises ValueError when the folder holds no ``run.json`` or one of a version this reader does not know.
    """
    path = Path(directory)
    file = path / RUN_JSON
    if not file.is_file():
        raise ValueError(f"{path} is not a run directory: it holds no {RUN_JSON}")
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{file}: expected a JSON object, found {type(meta).__name__}")
    version = meta.get("schema_version", _META_VERSION)
    if version != _META_VERSION:
        raise ValueError(f"{file}: schema version {version!r}; this reader knows version {_META_VERSION}")
    return Run(meta, path)


def find_runs(results: str | Path) -> list[Path]:
    """All run directories (those with a ``run.json``) in and under ``results``, sorted by path."""
    root = Path(results)
    if not root.is_dir():
        raise ValueError(f"{root} is not a directory")
    return sorted(file.parent for file in root.rglob(RUN_JSON))


def read_stream(file: Path) -> pa.Table | None:
    """The complete batches of an Arrow IPC stream whose end may be missing; None when not even the schema is there."""
    with pa.OSFile(str(file), "rb") as source:
        try:
            reader = pa.ipc.open_stream(source)
        except (pa.ArrowInvalid, OSError):
            return None
        batches = []
        while True:
            try:
                batches.append(reader.read_next_batch())
            except (StopIteration, pa.ArrowInvalid, OSError):  # the end, or a message cut off by a kill
                return pa.Table.from_batches(batches, schema=reader.schema)


def _table_file(path: Path, name: str) -> Path | None:
    # Where both lie, the run ended while the stream was being converted: the stream is the complete one.
    for file in (path / f"{name}.arrows", path / f"{name}.parquet"):
        if file.is_file():
            return file
    return None


def _check_version(schema: pa.Schema, name: str, file: Path) -> None:
    stated = (schema.metadata or {}).get(b"schema_version")
    known = str(KNOWN_VERSION[name])
    if stated is not None and stated.decode() != known:
        raise ValueError(f"{file}: table {name!r} has schema version {stated.decode()}; this reader knows {known}")


def _to_frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _conform(frame: pd.DataFrame, name: str, where: str) -> pd.DataFrame:
    """The frame with every column of the schema, in its order, any further ones behind; missing ones hold nulls."""
    lost = [column for column in _ESSENTIAL[name] if column not in frame.columns]
    if lost:
        raise ValueError(f"{where}: table {name!r} lacks the column(s) {', '.join(lost)}; it has {list(frame.columns)}")
    schema = SCHEMAS[name]
    missing = [field for field in schema if field.name not in frame.columns]
    if missing:
        empty = {
            field.name: pd.Series(pa.nulls(len(frame), field.type).to_pandas(), index=frame.index, name=field.name)
            for field in missing
        }
        frame = pd.concat([frame, pd.DataFrame(empty, index=frame.index)], axis=1)
    further = [column for column in frame.columns if column not in schema.names]
    return frame[[*schema.names, *further]]
