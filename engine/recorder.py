"""The engine's own tables (one row a step, a batch member, a change in number), written between steps."""

from __future__ import annotations

import pyarrow as pa

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
        ("prefill_attention", pa.float64()),  # sum of q * (context + q / 2) over the prefill chunks, context before the chunk
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
