"""Capacity λ*: completions a second while somebody always waits, and whether it drifted between two calibrations.

Both come from saturated runs (a closed loop with at least two clients a seat). What was saturated is read from the engine's
steps, not from the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.intervals import TooShort
from analysis.machine_speed import Wobble
from analysis.runs import Run

Floats = NDArray[np.float64]

DRIFT_LIMIT = 0.05
MOST_BATCHES = 20
LEAST_BATCHES = 5
LEAST_IN_BATCH = 5  # completions
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class Capacity:
    """Completions per second with a confidence interval; ``n`` completions between ``start_s`` and ``end_s``."""

    rate: float
    low: float
    high: float
    n: int
    start_s: float
    end_s: float
    confidence: float
    batches: int

    def __str__(self) -> str:
        return (
            f"{self.rate:.4g} requests/s ({100 * self.confidence:g} % confidence {self.low:.4g} to {self.high:.4g}, "
            f"n = {self.n} in {self.end_s - self.start_s:.3g} s)"
        )


@dataclass(frozen=True)
class Drift:
    """How much longer the same requests took the second time: ``ratio`` (after / before - 1) with a confidence interval.

    ``wobble`` is the machine's between runs (relative standard deviation; nan where not known), which the interval holds.
    """

    ratio: float
    low: float
    high: float
    n: int
    confidence: float
    wobble: float = math.nan

    @property
    def drifted(self) -> bool:
        return self.verdict == "drifted"

    @property
    def verdict(self) -> str:
        """``drifted`` where the whole interval is more than 5 % from 0, ``steady`` where all of it is less, else
        ``undecided``."""
        if self.low > DRIFT_LIMIT or self.high < -DRIFT_LIMIT:
            return "drifted"
        return "steady" if self.low >= -DRIFT_LIMIT and self.high <= DRIFT_LIMIT else "undecided"

    def __str__(self) -> str:
        known = "" if math.isnan(self.wobble) else f"; the machine wobbles by {100 * self.wobble:.2g} % between runs"
        return (
            f"{self.verdict}: the same {self.n} requests took {100 * self.ratio:+.2g} % time "
            f"({100 * self.confidence:g} % confidence {100 * self.low:+.2g} to {100 * self.high:+.2g} %{known})"
        )


def capacity(run: Run, confidence: float = 0.95) -> Capacity:
    """Completions a second in the longest saturated stretch of the measured phase (see :func:`saturated`).

    The interval is from non-overlapping batch means over equal stretches of time (Law and Kelton 9.5.3), 5 to 20 of them,
    with at least 5 completions each. Neighbouring counts of a full engine are correlated negatively (what one leaves half
    done the next finishes), so it errs on the wide side, and needs fewer observations than ``intervals.batch_means``,
    which guards against positive correlation.

    Raises:
        TooShort: fewer than 25 completions under backlog.
        ValueError: the run has no steps, or nobody ever waited.
    """
    start, end = saturated(run)
    done = _completions(run)
    inside = np.sort(done[(done > start) & (done <= end)].to_numpy())
    n = len(inside)
    batches = min(MOST_BATCHES, n // LEAST_IN_BATCH)
    if batches < LEAST_BATCHES:
        raise TooShort("completions under backlog", n, LEAST_BATCHES * LEAST_IN_BATCH)
    counts, _ = np.histogram(inside, bins=np.linspace(start, end, batches + 1))
    rates = counts / ((end - start) / batches)
    half = float(stats.t.ppf((1 + confidence) / 2, batches - 1) * rates.std(ddof=1) / math.sqrt(batches))
    rate = n / (end - start)
    return Capacity(rate, max(0.0, rate - half), rate + half, n, start, end, confidence, batches)


def saturated(run: Run) -> tuple[float, float]:
    """The longest stretch of the measured phase in which no step lost anything for want of requests: start and end, s.

    A step is saturated where, once it was scheduled, somebody still waited or every seat was taken; the engine was not idle
    before it. (A line that is empty for the moment until the answers' clients send again costs nothing while the seats
    are full.)

    Raises:
        ValueError: the run has no steps, or nobody ever waited.
    """
    if not run.recorded("steps"):
        raise ValueError("capacity needs the engine's steps (who waited when), which this run did not record")
    low, high = run.window
    high = min(high, float(run.meta.get("window", {}).get("end_s", math.inf)))
    steps = run.steps[(run.steps["end_s"] > low) & (run.steps["start_s"] < high)]
    waits = (steps["inbox"] + steps["waiting"]).to_numpy() > 0
    seats = (run.meta.get("engine") or {}).get("max_num_seqs")
    full = np.zeros(len(steps), dtype=bool) if seats is None else steps["running"].to_numpy() >= seats
    if not waits.any():
        raise ValueError(
            "nobody waited in the measured phase: the run shows no capacity; drive it with a closed loop of at least two "
            "clients a seat"
        )
    busy = waits | full
    begins = busy & (~np.append(False, busy[:-1]) | (steps["idle_s"].to_numpy() > 0))
    stretch = np.cumsum(begins)[busy]
    inside = steps[busy].groupby(stretch).agg({"start_s": "min", "end_s": "max"}).clip(low, high)
    longest = inside.loc[(inside["end_s"] - inside["start_s"]).idxmax()]
    return float(longest["start_s"]), float(longest["end_s"])


def drift(before: Run, after: Run, confidence: float = 0.95, wobble: Wobble | None = None) -> Drift:
    """Compare two saturated runs of one request list: the time that the same completed requests took.

    The requests that completed in both, in the order in which they completed before, are cut into batches; each batch took
    a time before and a time after, and the interval is Student's t over the batches' log ratios. What differs between
    requests cancels. Requests of both warm-ups are left out. ``wobble``, how much the machine's speed differs between any
    two runs, widens the interval: without it a machine that is faster now and then looks as if it drifted.

    Raises:
        TooShort: fewer than 25 requests completed in both.
    """
    first, second = _completions(before), _completions(after)
    since = {name: max(0.0, run.window[0]) for name, run in (("before", before), ("after", after))}
    both = pd.DataFrame({"before": first, "after": second}).dropna().sort_values("before", kind="stable")
    both = both[(both["before"] >= since["before"]) & (both["after"] >= since["after"])]
    n = len(both)
    batches = min(MOST_BATCHES, n // LEAST_IN_BATCH)
    if batches < LEAST_BATCHES:
        raise TooShort("requests completed in both calibrations", n, LEAST_BATCHES * LEAST_IN_BATCH)
    edges = np.linspace(0, n - 1, batches + 1).round().astype(int)
    marks = np.array(both, dtype=float)
    marks[:, 1] = np.maximum.accumulate(marks[:, 1])  # the order of completion may differ by a step or two
    spans = np.diff(marks[edges], axis=0)
    ratio = float((marks[-1, 1] - marks[0, 1]) / (marks[-1, 0] - marks[0, 0]) - 1.0)
    used = spans[(spans > 0).all(axis=1)]
    logs = np.log(used[:, 1] / used[:, 0])
    half = float(stats.t.ppf((1 + confidence) / 2, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    if wobble is not None:
        half = math.hypot(half, wobble.half_width(confidence))
    return Drift(
        ratio,
        (1 + ratio) * math.exp(-half) - 1,
        (1 + ratio) * math.exp(half) - 1,
        n,
        confidence,
        math.nan if wobble is None else wobble.spread,
    )


def _completions(run: Run) -> pd.Series:
    """The engine's stamp of the end of each request that finished, by request id."""
    rows = run.requests[run.requests["finish_reason"].isin(FINISHED)]
    return rows.set_index("request_id")["done_s"].astype(float)
