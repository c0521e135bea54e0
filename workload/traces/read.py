"""``read_trace``: recorded arrivals and lengths as one table, whatever their format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workload.schema import validate
from workload.traces.formats import read_raw
from workload.traces.shape import TraceOptions, shaped


def read_trace(path: str | Path, format: str = "auto", **options: Any) -> pd.DataFrame:
    """A trace as a table, ready to be replayed.

    Args:
        path: the file.
        format: ``azure`` (2023, 2024), ``mooncake``, ``burstgpt`` (6 or 8 columns), ``servegen`` (client windows: arrivals
            are drawn), ``csv``, ``jsonl``, ``parquet``; ``auto`` decides by name and columns and says so.
        options: the fields of :class:`workload.traces.shape.TraceOptions`: ``columns``, ``time_unit``, ``unsorted``,
            ``zero_output``, ``zero_prompt``, ``equal_stamps``, ``window``, ``limit``, ``rate``, ``rate_by``, ``scale``,
            ``seed``.

    Returns:
        ``arrival_s`` (float64 seconds from the trace's or the window's start, ascending), ``prompt_tokens`` and
        ``output_tokens`` (int64; missing values where the format has no lengths) and, where the format has them,
        ``hash_ids``. ``.attrs["notes"]`` lists what was decided and changed.

    Raises:
        ValueError: (TraceError, SpecError) one line naming the file and line, or the option.
    """
    parsed = validate(TraceOptions, {"format": format, **options})
    raw = read_raw(
        Path(path),
        parsed.format,
        {str(key): name for key, name in parsed.columns.items()},
        parsed.time_unit,
        parsed.seed,
    )
    raw, notes = shaped(raw, parsed)
    missing = pd.array([pd.NA] * len(raw.arrival_s), dtype="Int64") if raw.prompt_tokens is None else None
    table = pd.DataFrame(
        {
            "arrival_s": raw.arrival_s,
            "prompt_tokens": raw.prompt_tokens if raw.prompt_tokens is not None else missing,
            "output_tokens": raw.output_tokens if raw.output_tokens is not None else missing,
        }
    )
    if raw.hash_ids is not None:
        table["hash_ids"] = raw.hash_ids
    assert (np.diff(raw.arrival_s) >= 0).all()
    table.attrs["notes"] = notes
    return table
