"""The client's tables: one row a request, its token times, its prompt. The engine's tables are in engine/recorder.py.

Times are float64 seconds since the run's origin (the zero of its arrival process) on the one monotonic clock; nan means
"did not happen". Columns that end in ``_s`` are stamps; ``lag``, ``cap_wait``, ``wait_first`` and ``wait_total`` are
durations in seconds.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

CLIENT_STAMPS = ("intended_s", "sent_s", "first_token_s", "last_token_s", "finished_s")
ENGINE_STAMPS = ("received_s", "scheduled_s", "emitted_first_s", "emitted_last_s", "done_s")

REQUESTS = pa.schema(
    [
        ("request_id", pa.string()),
        ("phase", pa.string()),  # warmup, measure, cooldown
        *((name, pa.float64()) for name in CLIENT_STAMPS + ENGINE_STAMPS),
        ("lag", pa.float64()),  # sent - intended - cap_wait
        ("cap_wait", pa.float64()),
        ("wait_first", pa.float64()),  # received -> first scheduled
        ("wait_total", pa.float64()),  # summed over every visit to the waiting line
        ("wait_reason", pa.string()),  # seats, budget, kv; null when it never had to wait beyond a step
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("max_tokens", pa.int32()),
        ("predicted_output_tokens", pa.int32()),
        ("preemptions", pa.int32()),
        ("visible_step", pa.int64()),  # first step whose scheduling saw the request
        ("finish_reason", pa.string()),  # stop, length | refused, failed, aborted, timeout | null: censored, still in flight
        ("error", pa.string()),
        ("session_id", pa.string()),
        ("turn", pa.int32()),
        ("priority", pa.int32()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)

TOKENS = pa.schema(
    [("request_id", pa.string()), ("token_s", pa.list_(pa.float64()))],  # client's stamp of each output token
    metadata={"schema_version": str(SCHEMA_VERSION)},
)

PROMPTS = pa.schema(
    [("request_id", pa.string()), ("token_ids", pa.list_(pa.int32()))],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
