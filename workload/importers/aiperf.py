"""Per-request records of aiperf (``profile_export.jsonl``): one JSON object a line with ``metadata``, ``metrics``, ``error``.

Stamps are Unix nanoseconds (``request_start_ns``, ``request_end_ns``), durations ms from sending. The file holds no intended
arrivals. ``inter_chunk_latency`` has the gaps between messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workload.importers.imported import (
    ENDED,
    ForeignRequest,
    ForeignRun,
    ImportMistake,
    number,
    parse_json,
    read_text,
    token_stamps,
    unstamped_note,
    whole,
)


def read_aiperf(path: Path) -> list[ForeignRun]:
    """The one run of the file.

    Raises:
        ImportMistake: a line is no such record.
    """
    records = []
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        if text.strip():
            where = f"{path}:{line}"
            record = parse_json(text, where)
            if not isinstance(record, Mapping) or not isinstance(record.get("metadata"), Mapping):
                raise ImportMistake(f"{where}: no metadata; a record of aiperf's profile_export.jsonl is needed")
            records.append((where, record))
    starts = [record["metadata"].get("request_start_ns") for _, record in records]
    for (where, _), start in zip(records, starts, strict=True):
        if not isinstance(start, int):
            raise ImportMistake(f"{where}: request_start_ns: found {start!r}; whole nanoseconds are needed")
    zero_ns = min(starts, default=0)  # taken off as whole numbers: a float of Unix nanoseconds is 0.2 us coarse
    requests = [_request(record, where, zero_ns, index) for index, (where, record) in enumerate(records)]
    return [ForeignRun("run", requests, False, {"first_request_unix_ns": zero_ns}, unstamped_note(requests))]


def _request(record: Mapping[str, Any], where: str, zero_ns: int, index: int) -> ForeignRequest:
    metadata = record["metadata"]
    metrics = record.get("metrics") or {}

    def value(name: str) -> Any:
        found = metrics.get(name)
        return found.get("value") if isinstance(found, Mapping) else found

    def seconds(name: str) -> float:
        return number(value(name), f"{where}: {name}") / 1e3

    start_s = (metadata["request_start_ns"] - zero_ns) / 1e9
    end_ns = metadata.get("request_end_ns")
    error = record.get("error")
    first_s = start_s + seconds("time_to_first_token")
    raw_gaps = value("inter_chunk_latency")
    gaps_s = [number(gap, f"{where}: inter_chunk_latency") / 1e3 for gap in raw_gaps] if raw_gaps else []
    output_tokens = whole(value("output_sequence_length"), f"{where}: output_sequence_length")
    has_last = raw_gaps is not None or output_tokens == 1
    return ForeignRequest(
        request_id=str(metadata.get("x_request_id") or index),
        intended_s=start_s,
        sent_s=start_s,
        first_token_s=first_s,
        last_token_s=first_s + math.fsum(gaps_s) if has_last else start_s + seconds("request_latency"),
        finished_s=math.nan if end_ns is None else (end_ns - zero_ns) / 1e9,
        finish_reason=_reason(metadata, error),
        prompt_tokens=whole(value("input_sequence_length") or value("error_isl"), f"{where}: input_sequence_length"),
        output_tokens=output_tokens,
        token_s=token_stamps(first_s, gaps_s, output_tokens),
        error=str(error.get("message") or error) if isinstance(error, Mapping) else None,
        session_id=metadata.get("x_correlation_id") or metadata.get("conversation_id"),
        turn=whole(metadata.get("turn_index"), f"{where}: turn_index"),
        phase="warmup" if metadata.get("benchmark_phase") == "warmup" else "measure",
    )


def _reason(metadata: Mapping[str, Any], error: Any) -> str:
    if metadata.get("was_cancelled"):
        return "aborted"
    if error:
        kind = str(error.get("type", "")) if isinstance(error, Mapping) else ""
        return "timeout" if "timeout" in kind.lower() else "failed"
    return ENDED
