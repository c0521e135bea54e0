"""A table that grows while a run goes on: Arrow IPC stream while written, Parquet once complete.

The stream is flushed batch by batch, so that a process killed at any moment leaves a file that reads up to its last
whole batch. Used by the engine for its own tables and by the load generator for the client's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

STREAM_SUFFIX = ".arrows"
PARQUET_SUFFIX = ".parquet"


class TableWriter:
    """Rows (tuples in the schema's order) buffered in memory, flushed as record batches to ``<directory>/<name>.arrows``.

    One thread flushes; others may append at any time.
    """

    def __init__(self, directory: Path, name: str, schema: pa.Schema) -> None:
        self.path = directory / f"{name}{STREAM_SUFFIX}"
        self.schema = schema
        self.num_rows = 0
        self._rows: deque[tuple[Any, ...]] = deque()
        self._file = pa.OSFile(str(self.path), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        # the schema is written with the first batch: an empty one makes the file readable from the start
        self._stream.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
        for field in schema:  # pyarrow loads pandas at its first conversion: now, not in the middle of a run
            pa.array([None], type=field.type)

    @property
    def waiting(self) -> int:
        """Rows in memory, not written yet."""
        return len(self._rows)

    def append(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)

    def extend(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._rows.extend(rows)

    def flush(self, limit: int | None = None) -> bool:
        """Write the buffered rows, or the ``limit`` oldest of them, as one record batch; returns whether some are left."""
        if not self._rows:
            return False
        count = len(self._rows) if limit is None else min(limit, len(self._rows))
        rows = [self._rows.popleft() for _ in range(count)]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, self.schema, strict=True)]
        self._stream.write_batch(pa.record_batch(arrays, schema=self.schema))
        self._file.flush()
        self.num_rows += count
        return bool(self._rows)

    def close(self) -> None:
        """Flush and end the stream; the file stays an Arrow stream."""
        self.flush()
        self._stream.close()
        self._file.close()


def read_stream(path: Path) -> pa.Table:
    """All whole record batches of a stream, also of one that was cut off in mid-batch.

    Raises:
        ValueError: the file ends before its schema: nothing can be read.
    """
    with pa.OSFile(str(path), "rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path}: no Arrow stream, or cut off before its schema ({error})") from error
        batches = []
        while True:
            try:
                batches.append(reader.read_next_batch())
            except StopIteration:
                break
            except (pa.ArrowInvalid, OSError):  # the batch that was being written when the process died
                break
        return pa.Table.from_batches(batches, schema=reader.schema)


def stream_to_parquet(path: Path) -> Path:
    """Replace a complete ``.arrows`` file by the ``.parquet`` file beside it."""
    target = path.with_suffix(PARQUET_SUFFIX)
    pq.write_table(read_stream(path), target, compression="zstd")
    path.unlink()
    return target
