"""A run's directory: rows stream into ``<name>.partial`` and the finished whole is renamed into place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from engine.sequence import Request
from engine.tables import STREAM_SUFFIX, TableWriter, stream_to_parquet
from workload.records import PROMPTS, REQUESTS, SCHEMA_VERSION, TOKENS, RequestRecord

PARTIAL_SUFFIX = ".partial"


class ClientTables:
    """The client's tables of one run: ``requests`` and, if wanted, ``tokens`` and ``prompts``."""

    def __init__(
        self, directory: Path, origin_s: float, record_prompts: bool = False, *, record_tokens: bool = True
    ) -> None:
        self._origin_s = origin_s
        self._requests = TableWriter(directory, "requests", REQUESTS)
        self._tokens = TableWriter(directory, "tokens", TOKENS) if record_tokens else None
        self._prompts = TableWriter(directory, "prompts", PROMPTS) if record_prompts else None

    def record_request(self, record: RequestRecord) -> None:
        self._requests.append(record.row(self._origin_s))
        if self._tokens is not None:
            self._tokens.append((record.request_id, record.token_s))

    def record_prompt(self, request: Request) -> None:
        if self._prompts is not None:
            self._prompts.append((request.request_id, request.prompt_token_ids))

    @property
    def waiting(self) -> int:
        """Requests whose rows are not written yet."""
        return self._requests.waiting

    def flush(self, limit: int | None = None) -> bool:
        """Write the rows so far, or ``limit`` of each table; returns whether some are left."""
        left = [table.flush(limit) for table in self._tables()]
        return any(left)

    def close(self) -> None:
        for table in self._tables():
            table.close()

    def _tables(self) -> list[TableWriter]:
        return [table for table in (self._requests, self._tokens, self._prompts) if table is not None]


class RunDirectory:
    """Creates, fills and completes the directory of one run.

    Args:
        path: where the complete run will be; while it goes on its files are in ``<path>.partial``.

    Raises:
        FileExistsError: a complete run is there already; nothing is overwritten.
        OSError: the directory can't be written.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise FileExistsError(f"{path}: a complete run is here already; choose another --out or move it away")
        self.final = path
        self.path = path.with_name(path.name + PARTIAL_SUFFIX)
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in self.path.iterdir():
            stale.unlink()

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        write_json(self.path / "run.json", {"schema_version": SCHEMA_VERSION, **meta})

    def complete(self) -> Path:
        """Turn the streams into Parquet and rename the directory into place."""
        for stream in sorted(self.path.glob(f"*{STREAM_SUFFIX}")):
            stream_to_parquet(stream)
        os.rename(self.path, self.final)
        return self.final


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON through a temporary file, so that a reader never sees half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=1, allow_nan=True) + "\n")
    os.replace(temporary, path)
