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
from numpy.typing import NDArray
from scipy import special

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

LAG_LIMIT_S = 1e-3  # a send later than this is late,
LATE_LIMIT = 0.01  # and a generator with more late sends than this share has distorted the load it claims
LAG_CONFIDENCE = 0.95  # of "kept up" and of "fell behind", each


def lag_verdict(lags: Sequence[float]) -> dict[str, Any]:
    """How late the generator sent, from the lags (s) in the order of sending, and whether it kept up.

    "kept up" and "fell behind" say that at most, or more than, 1 % of such sends are later than 1 ms; each is wrong in at
    most 5 % of runs. Otherwise "undecided". One pause of the machine delays several sends in a row, which count as few
    independent ones: as many as make the binomial's variance that of a two-state Markov chain with the lag-1 correlation
    found (1 + r) / (1 - r) times larger (Priestley, Spectral Analysis and Time Series, 5.3).
    """
    if not lags:
        return {"count": 0, "verdict": "nothing was sent"}
    p50, p99 = (float(value) for value in np.quantile(lags, [0.5, 0.99], method="inverted_cdf"))
    late = np.asarray(lags) > LAG_LIMIT_S
    count, effective = int(late.sum()), late.size / _inflation(late)
    low, high = late_bounds(count * effective / late.size, effective)
    return {
        "count": len(lags),
        "mean_s": float(np.mean(lags)),
        "p50_s": p50,
        "p99_s": p99,
        "max_s": max(lags),
        "late": count,
        "effective_count": effective,
        "late_share_low": low,
        "late_share_high": high,
        "verdict": late_verdict(low, high),
    }


def late_bounds(late: float, sends: float) -> tuple[float, float]:
    """Lower and upper confidence bound on the share of late sends, each at ``LAG_CONFIDENCE``.

    Clopper and Pearson (Biometrika 26, 1934), by quantiles of the beta law, which need no whole numbers.
    """
    alpha = 1 - LAG_CONFIDENCE
    low = float(special.betaincinv(late, sends - late + 1, alpha)) if late > 0 else 0.0
    high = float(special.betaincinv(late + 1, sends - late, 1 - alpha)) if late < sends else 1.0
    return low, high


def late_verdict(low: float, high: float) -> str:
    """What the bounds on the share of late sends say."""
    limit = f"of sends later than {LAG_LIMIT_S * 1e3:g} ms"
    if low > LATE_LIMIT:
        return f"fell behind: at least {low:.1%} {limit}"
    if high <= LATE_LIMIT:
        return f"kept up: at most {high:.1%} {limit}"
    return f"undecided: {low:.1%} to {high:.1%} {limit}, and {LATE_LIMIT:.0%} is the limit"


def _inflation(late: NDArray[np.bool_]) -> float:
    """By how much the variance of the share of late sends exceeds the binomial's, from how late sends follow each other."""
    before, after = late[:-1], late[1:]
    if not before.any() or before.all():
        return 1.0
    correlation = float(after[before].mean() - after[~before].mean())
    return (1 + correlation) / (1 - correlation) if 0 < correlation < 1 else 1.0
