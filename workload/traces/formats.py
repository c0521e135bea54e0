"""The trace formats: which one a file is, and how each is read.

Azure (2023, 2024), Mooncake, BurstGPT (6 and 8 columns), ServeGen client windows (``servegen.py``), and CSV, JSONL or Parquet
with columns named by the user.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workload.schema import did_you_mean
from workload.traces.raw import RawTrace, TraceError, seconds_from_dates, seconds_from_numbers, whole_tokens
from workload.traces.servegen import COLUMNS as SERVEGEN_COLUMNS
from workload.traces.servegen import read_servegen

FORMATS = ("azure", "mooncake", "burstgpt", "servegen", "csv", "jsonl", "parquet")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
AZURE = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
MOONCAKE = {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "hash_ids": "hash_ids"}
BURSTGPT = {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"}
GENERIC = {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "hash_ids": "hash_ids"}

Lines = NDArray[np.int64]


def read_raw(path: Path, format: str, columns: Mapping[str, str], time_unit: str, seed: int) -> RawTrace:
    """The rows of ``path``.

    Raises:
        TraceError: no such file, no such format or column, or a value that can't be right, with its line.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"format is {format!r}; {did_you_mean(format, ['auto', *FORMATS])}")
    kind, table, lines = _load(path)
    names = list(map(str, table.columns))
    decided = format if format != "auto" else _recognise(kind, names, columns)
    notes = [f"format {decided}" + (f", recognised by its columns {', '.join(names)}" if format == "auto" else "")]
    if decided == "servegen":
        _require(path, decided, names, SERVEGEN_COLUMNS)
        raw = read_servegen(path, table, lines, seed)
        return RawTrace(raw.path, raw.arrival_s, None, None, None, raw.lines, notes + raw.notes)
    fixed = {"azure": AZURE, "mooncake": MOONCAKE, "burstgpt": BURSTGPT}.get(decided)
    if fixed is not None and columns:
        raise TraceError(
            f"{path}: columns are named, but the format {decided} has its own; use format csv, jsonl or parquet"
        )
    wanted = fixed if fixed is not None else {**GENERIC, **columns}
    optional = {"hash_ids"} - set(columns)
    _require(path, decided, names, [name for key, name in wanted.items() if key not in optional])
    return _rows(path, decided, table, lines, wanted, time_unit, notes)


def _rows(
    path: Path,
    decided: str,
    table: pd.DataFrame,
    lines: Lines,
    wanted: Mapping[str, str],
    time_unit: str,
    notes: list[str],
) -> RawTrace:
    stamps = table[wanted["arrival"]]
    numeric = pd.api.types.is_numeric_dtype(stamps.dtype)
    if decided == "azure" or (decided in ("csv", "jsonl", "parquet") and time_unit == "auto" and not numeric):
        arrival = seconds_from_dates(path, stamps, lines)
        notes.append(f"{wanted['arrival']} read as dates, kept to the nanosecond")
    else:
        unit = "ms" if decided == "mooncake" else "s" if decided == "burstgpt" or time_unit == "auto" else time_unit
        arrival = seconds_from_numbers(path, stamps, lines, UNITS[unit])
        notes.append(f"{wanted['arrival']} read as {unit}")
    hashes = wanted.get("hash_ids")
    return RawTrace(
        path=path,
        arrival_s=arrival,
        prompt_tokens=whole_tokens(path, table[wanted["prompt"]], lines),
        output_tokens=whole_tokens(path, table[wanted["output"]], lines),
        hash_ids=table[hashes].to_numpy(dtype=object) if hashes in table.columns else None,
        lines=lines,
        notes=notes,
    )


def _recognise(kind: str, names: list[str], columns: Mapping[str, str]) -> str:
    if not columns:
        for decided, own in (("azure", AZURE), ("burstgpt", BURSTGPT), ("mooncake", MOONCAKE)):
            if set(own.values()) - {"hash_ids"} <= set(names):
                return decided
        if set(SERVEGEN_COLUMNS) <= set(names):
            return "servegen"
    return kind


def _require(path: Path, decided: str, names: list[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            remedy = f"the format {decided} has the columns {', '.join(wanted)}"
            if decided in ("csv", "jsonl", "parquet"):
                remedy = (
                    "name those of arrival, prompt and output with columns: {arrival: NAME, prompt: NAME, output: NAME}"
                )
            raise TraceError(f"{path}: no column {name!r}; {did_you_mean(name, names)}; {remedy}")


def _load(path: Path) -> tuple[str, pd.DataFrame, Lines]:
    """(csv, jsonl or parquet; the table; the line or row of each row)."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        try:
            table = pq.read_table(path).to_pandas()
        except pa.ArrowInvalid as error:
            raise TraceError(f"{path}: not a Parquet file: {error}") from None
        return "parquet", table, np.arange(len(table), dtype=np.int64)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return "jsonl", *_load_json_lines(path)
    return "csv", *_load_csv(path)


def _load_csv(path: Path) -> tuple[pd.DataFrame, Lines]:
    try:
        table = pd.read_csv(path, skip_blank_lines=False, encoding="utf-8-sig", low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a CSV file: {' '.join(str(error).split())}") from None
    lines = np.arange(2, len(table) + 2, dtype=np.int64)
    blank = table.isna().all(axis=1).to_numpy()
    return table[~blank].reset_index(drop=True), lines[~blank]


def _load_json_lines(path: Path) -> tuple[pd.DataFrame, Lines]:
    data = path.read_bytes()
    try:
        table = pajson.read_json(pa.BufferReader(data), read_options=pajson.ReadOptions(block_size=1 << 22))
    except pa.ArrowInvalid as error:
        raise TraceError(_bad_json_line(path, str(error))) from None
    frame = _frame(table)
    if data.count(b"\n") + (not data.endswith(b"\n")) == len(frame):  # no blank lines
        return frame, np.arange(1, len(frame) + 1, dtype=np.int64)
    filled = [number for number, line in enumerate(data.splitlines(), 1) if line and not line.isspace()]
    return frame, np.array(filled, dtype=np.int64)


def _frame(table: pa.Table) -> pd.DataFrame:
    """The table in pandas; lists become views into one array, which takes half as long as an array for each row."""
    lists = [field.name for field in table.schema if pa.types.is_list(field.type) and not table[field.name].null_count]
    frame = table.drop_columns(lists).to_pandas()
    for name in lists:
        column = table[name].combine_chunks()
        flat, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
        rows = np.empty(len(column), dtype=object)
        for row, (begin, end) in enumerate(itertools.pairwise(ends.tolist())):
            rows[row] = flat[begin:end]
        frame[name] = rows
    return frame[table.column_names]


def _bad_json_line(path: Path, reason: str) -> str:
    """Where the file stops being one JSON object a line."""
    with path.open("r", encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                return f"{path}:{number}: not JSON: {error.msg} at column {error.colno}; one object a line is allowed"
            if not isinstance(value, dict):
                return f"{path}:{number}: found {line.strip()[:40]!r}; one JSON object a line is allowed"
    return f"{path}: not one JSON object a line: {reason}"
