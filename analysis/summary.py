"""One run as statements: what came, what became of it, whether the run may be averaged at all, and if so the numbers.

Nothing stands alone here: each mean and percentile has its count and its interval, or the reason why it has none. A run whose
backlog grew has no average; it is named unstable instead. ``RunSummary.to_dict`` is what ``analysis.json`` holds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.areas import step_integral
from analysis.intervals import Estimate, TooShort, batch_means, correlation_time
from analysis.littles_law import Counts, FiniteWindow, LittlesLaw, count, littles_law
from analysis.runs import Run
from analysis.stability import Stability, stability
from analysis.study import name_of, replication_of, seats_of
from analysis.tails import QuantileInterval, TooFewSamples, quantile_interval
from workload.records import LAG_LIMIT_S, LATE_LIMIT, lag_verdict, late_bounds, late_verdict

Array = NDArray[np.float64]

SCHEMA_VERSION = 1
QUANTILES = (0.5, 0.9, 0.95, 0.99)
ANALYSIS_JSON = "analysis.json"


@dataclass(frozen=True)
class Load:
    """Requests a second over the measure window, and the planned rate (nan where none was planned)."""

    planned: float
    offered: float  # intended arrivals
    accepted: float  # of these, not refused
    completed: float  # ended normally within the window


@dataclass(frozen=True)
class Latency:
    """One duration over the measured requests, in seconds.

    ``n`` requests have it (of ITL: ``n`` gaps), ``censored`` requests never ended (+inf); ``undefined`` have none (TPOT of a
    single token). ``quantiles`` holds an interval for each of ``QUANTILES``, or why the count does not support it.
    """

    n: int
    censored: int
    undefined: int
    mean: Estimate | TooShort | None  # None: the run may not be averaged
    sample_mean: float  # of this run, whatever it is worth; nan where something is censored or nothing may be averaged
    quantiles: dict[float, QuantileInterval | TooFewSamples]

    def shown(self, q: float) -> float | None:
        """The percentile, if the count supports it."""
        found = self.quantiles.get(q)
        return found.value if isinstance(found, QuantileInterval) else None


@dataclass(frozen=True)
class EngineCounts:
    """What the engine did besides serving; nan where it was not recorded."""

    prefix_hit_rate: float  # prompt tokens found in the prefix cache, of all prompt tokens admitted in the window
    evictions: float  # cached blocks given to another content, in the whole run
    preemptions: float  # of the measured requests


@dataclass(frozen=True)
class Attainment:
    """How many of the requests that *arrived* met the objectives; refused, failed and censored ones are misses."""

    met: int
    arrived: int
    share: float
    low: float
    high: float
    goodput: float  # met per second
    wanted: float
    limits: dict[str, float]  # of each objective, in ms
    verdict: str  # "met", "missed", "undecided"


@dataclass(frozen=True)
class RunSummary:
    """Everything that one run says. Times in seconds, rates per second."""

    name: str
    experiment: str
    point: str
    replication: str
    status: str
    window: tuple[float, float]
    seats: int | None
    counts: Counts  # of the whole run
    measured: Counts  # of the measure phase
    load: Load
    stability: Stability
    lag: dict[str, Any]  # records.lag_verdict
    lag_share: dict[str, float]  # of the mean ttft and e2e of the requests that have them; nan without any
    little: LittlesLaw
    ttft: Latency
    tpot: Latency
    itl: Latency  # a mean without percentiles
    e2e: Latency
    engine: EngineCounts
    occupancy: float  # mean running / seats
    mean_running: float
    busy: float  # share of time inside a step
    slo: Attainment | None

    @property
    def stable(self) -> bool:
        """Whether averages and percentiles may be shown: not named unstable, and not cut short."""
        return self.stability.verdict != "unstable" and self.status == "complete"

    @property
    def fell_behind(self) -> bool:
        """Whether the generator demonstrably sent too late."""
        return str(self.lag.get("verdict", "")).startswith("fell behind")

    @property
    def kept_up(self) -> bool:
        """Whether nothing shows that the generator sent too late."""
        return not self.fell_behind

    @property
    def failures(self) -> list[str]:
        """The verdicts that failed, each one sentence."""
        found = []
        if self.status != "complete":
            found.append(f"{self.name}: the run is {self.status}")
        if self.stability.verdict == "unstable":
            found.append(f"{self.name}: unstable (backlog grew by {self.stability.growth:.0f} requests)")
        if self.fell_behind:
            found.append(f"{self.name}: the generator {lag_words(self)}")
        if self.little.verdict.startswith("open"):
            found.append(f"{self.name}: Little's law is {self.little.verdict}")
        if self.slo is not None and self.slo.verdict == "missed":
            found.append(f"{self.name}: objective missed ({self.slo.share:.1%} of {self.slo.wanted:.0%} wanted)")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nan becomes null, infinities become "inf"."""
        plain: dict[str, Any] = _plain(self)
        return {"schema_version": SCHEMA_VERSION, "stable": self.stable, **plain, "failures": self.failures}


def summarize(run: Run) -> RunSummary:
    """The statements of one run. Raises ValueError when it has no request in its measure phase."""
    if len(run.measured) == 0:
        raise ValueError(f"{name_of(run)}: no request arrived in the measure phase; nothing can be said about it")
    start, end = run.window
    requests = run.measured.sort_values("intended_s", kind="stable")
    state = stability(run)
    averaged = state.verdict != "unstable" and run.status == "complete"
    durations = latencies(run)
    seats = seats_of(run)
    running = _time_average(run, ("running",), start, end)
    meta = run.meta
    measured = count(requests)
    return RunSummary(
        name=name_of(run),
        experiment=str(meta.get("experiment", "")),
        point=str(meta.get("point", "")),
        replication=replication_of(run),
        status=run.status,
        window=(start, end),
        seats=seats,
        counts=count(run.requests),
        measured=measured,
        load=_load(run, measured, start, end),
        stability=state,
        lag=_lag(run),
        lag_share=_lag_share(requests, durations),
        little=littles_law(run),
        ttft=describe(durations["ttft"], averaged),
        tpot=describe(durations["tpot"], averaged, missing="undefined"),
        itl=inter_token(durations["tpot"], requests["output_tokens"].to_numpy(dtype=float, na_value=np.nan), averaged),
        e2e=describe(durations["e2e"], averaged),
        engine=_engine_counts(run, requests),
        occupancy=running / seats if seats else math.nan,
        mean_running=running,
        busy=_busy(run, start, end),
        slo=_attainment(run, durations, end - start),
    )


def latencies(run: Run) -> dict[str, Array]:
    """TTFT, TPOT and E2E (s) of the measured requests in the order of their intended arrival.

    Counted from the intended arrival. What did not end normally is +inf in all three; TPOT of fewer than two tokens is nan:
    undefined.
    """
    requests = run.measured.sort_values("intended_s", kind="stable")

    def column(name: str) -> Array:
        return requests[name].to_numpy(dtype=float, na_value=np.nan)

    normal = requests["finish_reason"].isin(["stop", "length"]).to_numpy(dtype=bool)
    intended, first, last = column("intended_s"), column("first_token_s"), column("last_token_s")
    gaps = column("output_tokens") - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(gaps > 0, (last - first) / np.where(gaps > 0, gaps, 1), np.nan)
    e2e = np.where(normal, column("finished_s") - intended, np.inf)
    # A first token that came counts, even where the request itself was cut off by the end of the run.
    ttft = np.where(np.isnan(first) | (~normal & requests["finish_reason"].notna()), np.inf, first - intended)
    return {"ttft": ttft, "tpot": np.where(normal, tpot, np.inf), "e2e": e2e}


def lag_words(summary: RunSummary) -> str:
    """Whether the generator kept up, on what evidence, and how much of the mean latencies is its lag."""
    lag = summary.lag
    verdict = str(lag.get("verdict", "unknown")).split(":")[0]
    if not lag.get("count") or "late" not in lag:
        return verdict
    words = f"{verdict} ({lag['late']} of {lag['count']} sends later than {1e3 * LAG_LIMIT_S:g} ms"
    if summary.fell_behind and lag.get("run_delay_s", 0.0) >= lag["count"] * LAG_LIMIT_S * LATE_LIMIT:
        words += f", other programs kept its processor for {lag['run_delay_s']:.2g} s"
    if summary.stable:
        shares = [f"{_share(share)} of mean {name.upper()}" for name, share in summary.lag_share.items()]
        words += f"; lag is {' and '.join(shares)}"
    return words + ")"


def pooled_lag(summaries: Sequence[RunSummary]) -> str:
    """One verdict on the generator from the sends of all runs, each run's counted at what they are worth."""
    known = [summary.lag for summary in summaries if "effective_count" in summary.lag]
    if not known:
        return "unknown: no lag was recorded"
    worth = [lag["effective_count"] / lag["count"] for lag in known]
    late = sum(lag["late"] * each for lag, each in zip(known, worth, strict=True))
    return late_verdict(*late_bounds(late, sum(lag["effective_count"] for lag in known)))


def _lag(run: Run) -> dict[str, Any]:
    """The verdict on the lags in the rows, in order of sending; where there are none, what the record says of them."""
    rows = run.requests[["sent_s", "lag"]].dropna().sort_values("sent_s", kind="stable")
    recorded = run.meta.get("lag")
    if rows.empty and recorded is not None:
        return dict(recorded)
    before, after = ((run.meta.get(when) or {}).get("run_delay_s", math.nan) for when in ("load_before", "load_after"))
    return {**lag_verdict(rows["lag"].tolist()), "run_delay_s": after - before}


def _lag_share(requests: pd.DataFrame, durations: Mapping[str, Array]) -> dict[str, float]:
    """Sum of the lags over the sum of the durations of the same requests: the lag's part of their mean."""
    lag = requests["lag"].to_numpy(dtype=float, na_value=np.nan)
    found = {}
    for name in ("ttft", "e2e"):
        both = np.isfinite(lag) & np.isfinite(durations[name])
        total = float(durations[name][both].sum())
        found[name] = float(lag[both].sum()) / total if total > 0 else math.nan
    return found


def _share(share: float) -> str:
    return "an unknown part" if math.isnan(share) else "less than 0.01 %" if share < 5e-5 else f"{100 * share:.2g} %"


def describe(values: Array, averaged: bool = True, missing: str = "censored") -> Latency:
    """Mean and percentiles of one duration, in the order in which it happened; nan is ``missing``."""
    undefined = int(np.isnan(values).sum()) if missing == "undefined" else 0
    kept = values[~np.isnan(values)] if missing == "undefined" else np.where(np.isnan(values), np.inf, values)
    censored = int(np.isinf(kept).sum())
    if not averaged:
        return Latency(kept.size, censored, undefined, None, math.nan, {})
    mean: Estimate | TooShort
    if censored or kept.size == 0:
        mean = TooShort(f"{censored} requests never ended" if censored else "no observations", int(kept.size))
    else:
        try:
            mean = batch_means(kept)
        except TooShort as reason:
            mean = reason
    sample = float(kept.mean()) if kept.size and not censored else math.nan
    return Latency(kept.size, censored, undefined, mean, sample, _quantiles(kept))


def inter_token(tpot: Array, tokens: Array, averaged: bool = True) -> Latency:
    """ITL, the gap between one output token and the next: each gap counts once, where TPOT counts each request once.

    Args:
        tpot: seconds per output token of each request after its first (nan: undefined, +inf: never ended), in order.
        tokens: output tokens of each.

    The mean is all seconds between tokens over the number of gaps; its interval is that of a ratio (delta method), by batch
    means over the requests.
    """
    known = np.isfinite(tpot)
    gaps = tokens[known] - 1
    n, censored, undefined = int(gaps.sum()), int(np.isinf(tpot).sum()), int(np.isnan(tpot).sum())
    if not averaged:
        return Latency(n, censored, undefined, None, math.nan, {})
    if censored or n == 0:
        none = TooShort(f"{censored} requests never ended" if censored else "no gaps", n)
        return Latency(n, censored, undefined, none, math.nan, {})
    ratio = float(tpot[known] @ gaps) / n
    mean: Estimate | TooShort
    try:
        mean = batch_means(ratio + (tpot[known] - ratio) * gaps / gaps.mean())
    except TooShort as reason:
        mean = reason
    return Latency(n, censored, undefined, mean, ratio, {})


def _engine_counts(run: Run, requests: pd.DataFrame) -> EngineCounts:
    # Of the others the engine said nothing.
    admitted = requests[requests["scheduled_s"].notna()]
    prompts = float(admitted.loc[admitted["cached_tokens"].notna(), "prompt_tokens"].sum())
    return EngineCounts(
        prefix_hit_rate=float(admitted["cached_tokens"].sum()) / prompts if prompts > 0 else math.nan,
        evictions=float((run.meta.get("recording") or {}).get("evictions", math.nan)),
        preemptions=float(admitted["preemptions"].sum(min_count=1)),
    )


def _quantiles(values: Array) -> dict[float, QuantileInterval | TooFewSamples]:
    found: dict[float, QuantileInterval | TooFewSamples] = {}
    worth = float(values.size)
    for q in QUANTILES:
        try:
            # Few exceedances look less correlated than they are: further out no more independent ones than nearer in.
            centre = np.sort(values)[max(0, math.ceil(q * values.size) - 1)] if values.size else math.nan
            if values.size >= 4:
                worth = min(worth, values.size / correlation_time((values > centre).astype(float)))
            found[q] = quantile_interval(values, q, effective_n=worth or None)
        except TooFewSamples as reason:
            found[q] = reason
    return found


def _load(run: Run, measured: Counts, start: float, end: float) -> Load:
    span = end - start
    ended = run.requests.loc[run.requests["finish_reason"].isin(["stop", "length"]), "finished_s"].to_numpy(dtype=float)
    planned = run.meta.get("rate")
    return Load(
        planned=math.nan if planned is None else float(planned),
        offered=measured.arrived / span,
        accepted=(measured.arrived - measured.refused) / span,
        completed=float(np.count_nonzero((ended >= start) & (ended < end))) / span,
    )


def _time_average(run: Run, columns: tuple[str, ...], start: float, end: float) -> float:
    if not run.recorded("gauge"):
        return math.nan
    t = run.gauge["t_s"].to_numpy(dtype=float)
    number = run.gauge[list(columns)].to_numpy(dtype=float).sum(axis=1)
    return float(np.diff(step_integral(t, number, np.array([start, end])))[0]) / (end - start)


def _busy(run: Run, start: float, end: float) -> float:
    if not run.recorded("steps"):
        return math.nan
    begin, finish = (run.steps[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    return float(np.sum(np.clip(finish, start, end) - np.clip(begin, start, end))) / (end - start)


def _attainment(run: Run, durations: Mapping[str, Array], span: float) -> Attainment | None:
    slo = (run.meta.get("spec") or {}).get("slo") or {}
    limits = {name: slo.get(f"{name}_ms") for name in ("ttft", "tpot", "e2e")}
    stated = {name: float(limit) for name, limit in limits.items() if limit is not None}
    if not stated:
        return None
    good = np.isfinite(durations["e2e"])
    for name, limit in stated.items():
        value = durations[name]
        # A single token has no time per token that could be too long.
        good &= (value <= limit / 1e3) | (np.isnan(value) & (name == "tpot"))
    arrived, met = good.size, int(good.sum())
    worth = arrived / correlation_time(good.astype(float)) if arrived >= 4 else float(arrived)
    interval = stats.binomtest(round(met / arrived * worth), max(1, round(worth))).proportion_ci(0.95, "wilson")
    wanted = float(slo.get("attain") or 1.0)
    low, high = float(interval.low), float(interval.high)
    verdict = "met" if low >= wanted else "missed" if high < wanted else "undecided"
    return Attainment(met, arrived, met / arrived, low, high, met / span, wanted, stated, verdict)


def write_analysis(run: Run, summary: RunSummary, further: Mapping[str, Any] | None = None) -> Path:
    """Write ``analysis.json`` into the run's directory, whole or not at all; ``run.json`` is never touched."""
    if run.path is None:
        raise ValueError("a run in memory has no directory to write analysis.json into")
    target = run.path / ANALYSIS_JSON
    temporary = target.with_name(target.name + ".tmp")
    content = {**summary.to_dict(), **_plain(dict(further or {}))}
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    return target


def _plain(value: Any) -> Any:
    """Dataclasses, numpy values and reasons as JSON values."""
    if isinstance(value, TooShort):
        return {"too_short": value.reason, "n": value.n, "needed": value.needed}
    if isinstance(value, LittlesLaw | Estimate | QuantileInterval | FiniteWindow) or is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, LittlesLaw):
            plain["closure"]["remainder_share"] = _plain(value.closure.remainder_share)
        return plain
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
