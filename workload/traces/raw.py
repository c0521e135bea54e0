"""What every trace format is read into, before any policy is applied, and the errors that name a line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class TraceError(ValueError):
    """A mistake in a trace, told in one line: file, line, what was found, what is allowed."""


@dataclass(frozen=True)
class RawTrace:
    """The rows of a trace as they stand in the file.

    Attributes:
        path: the file.
        arrival_s: seconds since the file's first arrival (the earliest, where it is not sorted), float64.
        prompt_tokens, output_tokens: int64; ``None`` where the format has no lengths.
        hash_ids: a list of prefix block ids for each row; ``None`` where the format has none.
        lines: where each row stands: the line of a text file, the row of a Parquet file.
        notes: what was decided while reading.
    """

    path: Path
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64] | None
    output_tokens: NDArray[np.int64] | None
    hash_ids: NDArray[np.object_] | None
    lines: NDArray[np.int64]
    notes: list[str] = field(default_factory=list)

    def take(self, rows: NDArray[Any]) -> RawTrace:
        """The rows picked by an index or a mask."""

        def pick(column: Any) -> Any:
            return None if column is None else column[rows]

        return RawTrace(
            self.path,
            self.arrival_s[rows],
            pick(self.prompt_tokens),
            pick(self.output_tokens),
            pick(self.hash_ids),
            self.lines[rows],
            self.notes,
        )


def seconds_from_numbers(path: Path, column: pd.Series, lines: NDArray[np.int64], unit_s: float) -> NDArray[np.float64]:
    """Stamps given as numbers of ``unit_s`` seconds, from the earliest on.

    Raises:
        TraceError: a stamp that is no number, not finite or negative.
    """
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    refuse(path, ~(np.isfinite(values) & (values >= 0)), column, lines, "a number of at least 0")
    return (values - values.min()) * unit_s if len(values) else values


def seconds_from_dates(path: Path, column: pd.Series, lines: NDArray[np.int64]) -> NDArray[np.float64]:
    """Stamps given as dates (ISO 8601, any number of fractional digits up to nine), from the earliest on.

    The difference is taken in whole nanoseconds, so that stamps 100 ns apart stay apart.
    """
    dates = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    refuse(path, dates.isna().to_numpy(), column, lines, "a date such as 2023-11-16 18:15:46.6805900")
    ticks = dates.astype("datetime64[ns, UTC]").astype(np.int64).to_numpy()
    return (ticks - ticks.min()) / 1e9 if len(ticks) else ticks.astype(np.float64)


def whole_tokens(path: Path, column: pd.Series, lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Token counts of at least 0."""
    if pd.api.types.is_integer_dtype(column.dtype) and not column.isna().any():
        counts = column.to_numpy(dtype=np.int64)
        refuse(path, counts < 0, column, lines, "a whole number of at least 0")
        return counts
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    good = np.isfinite(values) & (values >= 0) & (values == np.rint(values))
    refuse(path, ~good, column, lines, "a whole number of at least 0")
    return values.astype(np.int64)


def refuse(path: Path, bad: NDArray[np.bool_], column: pd.Series, lines: NDArray[np.int64], allowed: str) -> None:
    """Raises TraceError for the first ``bad`` row, and says how many there are."""
    rows = np.flatnonzero(bad)
    if not rows.size:
        return
    found = column.iloc[int(rows[0])]
    text = (
        "nothing"
        if found is None or found is pd.NA or found != found
        else repr(found)
        if isinstance(found, str)
        else str(found)
    )
    more = f" (and {rows.size - 1} more rows)" if rows.size > 1 else ""
    raise TraceError(f"{path}:{lines[rows[0]]}: {column.name} is {text}; {allowed} is allowed{more}")
