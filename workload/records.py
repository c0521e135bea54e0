"""The client's tables: one row a request, its token times, its prompt. The engine's tables are in engine/recorder.py.

Times are float64 seconds since the run's origin (the zero of its arrival process) on the one monotonic clock; nan means
"did not happen". Columns that end in ``_s`` are stamps; ``lag``, ``cap_wait``, ``wait_first`` and ``wait_total`` are
durations in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from engine.outputs import RequestStats

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
        (
            "finish_reason",
            pa.string(),
        ),  # stop, length | refused, failed, aborted, timeout | null: censored, still in flight
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


@dataclass(slots=True)
class RequestRecord:
    """One request as the client follows it; ``row`` gives it in the order of ``REQUESTS``. Times relative to the origin."""

    request_id: str
    phase: str
    intended_s: float
    prompt_tokens: int
    max_tokens: int
    predicted_output_tokens: int | None = None
    session_id: str | None = None
    turn: int | None = None
    priority: int = 0
    sent_s: float = math.nan
    finished_s: float = math.nan
    cap_wait: float = 0.0
    finish_reason: str | None = None
    error: str | None = None
    token_s: list[float] = field(default_factory=list)
    stats: RequestStats | None = None

    def row(self, origin_s: float) -> tuple[Any, ...]:
        """The row of the ``requests`` table; the engine's stamps are moved to the run's origin."""
        stats = self.stats or UNKNOWN_STATS
        first_s = self.token_s[0] if self.token_s else math.nan
        last_s = self.token_s[-1] if self.token_s else math.nan
        ended = self.finish_reason is not None
        return (
            self.request_id,
            self.phase,
            self.intended_s,
            self.sent_s,
            first_s,
            last_s,
            self.finished_s,
            stats.received_s - origin_s,
            stats.scheduled_s - origin_s,
            stats.emitted_first_s - origin_s,
            stats.emitted_last_s - origin_s,
            stats.done_s - origin_s if ended else math.nan,
            self.sent_s - self.intended_s - self.cap_wait,
            self.cap_wait,
            stats.scheduled_s - stats.received_s,
            stats.wait_total,
            stats.wait_reason,
            self.prompt_tokens,
            stats.cached_tokens,
            len(self.token_s),
            self.max_tokens,
            self.predicted_output_tokens,
            stats.preemptions,
            stats.visible_step,
            self.finish_reason,
            self.error,
            self.session_id,
            self.turn,
            self.priority,
        )


UNKNOWN_STATS = RequestStats(
    received_s=math.nan,
    scheduled_s=math.nan,
    emitted_first_s=math.nan,
    emitted_last_s=math.nan,
    done_s=math.nan,
    wait_total=math.nan,
    wait_reason=None,
    cached_tokens=0,
    preemptions=0,
    visible_step=-1,
)

LAG_LIMIT_S = 1e-3  # a generator later than this at its 99th percentile has distorted the load it claims


def lag_verdict(lags: Sequence[float]) -> dict[str, Any]:
    """How late the generator sent, in seconds: median, 99th percentile, maximum, and whether it kept up."""
    if not lags:
        return {"count": 0, "verdict": "nothing was sent"}
    p50, p99 = (float(value) for value in np.quantile(lags, [0.5, 0.99], method="inverted_cdf"))
    verdict = "kept up" if p99 <= LAG_LIMIT_S else f"fell behind: p99 lag above {LAG_LIMIT_S * 1e3:g} ms"
    return {"count": len(lags), "p50_s": p50, "p99_s": p99, "max_s": max(lags), "verdict": verdict}
