"""The printed summary: one aligned table, then what was concluded, line by line. Under 110 columns, times in ms."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.capacity import Capacity, Drift
from analysis.intervals import Estimate, TooShort
from analysis.study import Calibration
from analysis.summary import Latency, RunSummary, lag_words
from analysis.tables import aligned, in_unit, with_unit

SHOWN = (("TTFT", "ttft", (0.5, 0.9, 0.99)), ("TPOT", "tpot", (0.5, 0.9)), ("E2E", "e2e", (0.5, 0.9, 0.99)))
DASH = "-"
WIDTH = 108


def summary_text(
    summaries: Sequence[RunSummary],
    loads: Sequence[tuple[float, float]],
    calibrations: Sequence[Calibration],
    comparison: pd.DataFrame,
) -> str:
    """The whole printed summary. ``loads`` holds planned and realised load of each run (nan: capacity not known)."""
    header = ["run", "n", "req/s", "load"]
    header += [f"p{100 * q:g}" for _, _, quantiles in SHOWN for q in quantiles]
    rows = []
    for summary, (_, realised) in zip(summaries, loads, strict=True):
        row = [short_name(summary, summaries), str(summary.measured.arrived), f"{summary.load.offered:.2f}"]
        row += [number(realised, 2)]
        row += [milliseconds(getattr(summary, key), q) for _, key, quantiles in SHOWN for q in quantiles]
        rows.append(row)
    table = aligned(header, rows)
    lines = [_groups(table[1], len(header)), *table]
    lines.append(
        "ms from the intended arrival; load: realised arrivals / capacity; -: too few effective observations beyond"
    )
    lines += ["", *_further(summaries)]
    lines += ["", *_wrapped(f"{short_name(s, summaries)}: {verdict_line(s)}" for s in summaries)]
    lines += ["", *_wrapped(calibration_line(calibration) for calibration in calibrations)]
    if not comparison.empty:
        lines += ["", *comparison_lines(comparison)]
    return "\n".join(lines)


def _groups(rule: str, columns: int) -> str:
    """A line that names the groups of percentile columns, over the table whose rule is given."""
    ends, at = [], 0
    for dashes in rule.split("  "):
        at += len(dashes)
        ends.append(at)
        at += 2
    line = ""
    column = columns - sum(len(quantiles) for _, _, quantiles in SHOWN)
    for name, _, quantiles in SHOWN:
        first, column = column, column + len(quantiles)
        start, stop = ends[first - 1] + 2, ends[column - 1]
        line = line.ljust(start) + f" {name} (ms) ".center(stop - start, "-")
    return line


def _further(summaries: Sequence[RunSummary]) -> list[str]:
    """Means by request and by token, and what the engine counted, as far as any run recorded it."""
    columns = {
        "mean TPOT": [mean_milliseconds(s.tpot) for s in summaries],
        "mean ITL": [mean_milliseconds(s.itl) for s in summaries],
        "mean E2E": [mean_milliseconds(s.e2e) for s in summaries],
        "prefix hits": [hit_rate(s) for s in summaries],
        "evictions": [number(s.engine.evictions, 0) for s in summaries],
        "preemptions": [number(s.engine.preemptions, 0) for s in summaries],
    }
    shown = {name: cells for name, cells in columns.items() if set(cells) != {DASH}}
    names = [short_name(summary, summaries) for summary in summaries]
    table = aligned(["run", *shown], [list(row) for row in zip(names, *shown.values(), strict=True)])
    return [*table, "means in ms: TPOT counts each request once, ITL each gap between two tokens once"]


def _wrapped(lines: Iterable[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]


def short_name(summary: RunSummary, among: Sequence[RunSummary]) -> str:
    """``experiment/point``, with the replication where there are several."""
    several = any(s.replication != summary.replication for s in among if s.experiment == summary.experiment)
    name = f"{summary.experiment}/{summary.point}"
    return f"{name}/{summary.replication}" if several else name


def milliseconds(latency: Latency, q: float) -> str:
    """A percentile in ms, or a dash where the count does not support it."""
    value = latency.shown(q)
    return DASH if value is None else "never" if math.isinf(value) else f"{1e3 * value:.4g}"


def mean_milliseconds(latency: Latency) -> str:
    """A run's mean in ms, or a dash where there is none."""
    return number(1e3 * latency.sample_mean, 1)


def hit_rate(summary: RunSummary) -> str:
    """The share of prompt tokens found in the prefix cache, or a dash where that was not recorded."""
    rate = summary.engine.prefix_hit_rate
    return DASH if math.isnan(rate) else f"{100 * rate:.1f} %"


def number(value: float, decimals: int) -> str:
    """A number, or a dash for nan."""
    return DASH if math.isnan(value) else f"{value:.{decimals}f}"


def verdict_line(summary: RunSummary) -> str:
    """What was concluded about a run, in one line."""
    if summary.status != "complete":
        return f"run {summary.status}: not judged"
    parts = [stability_words(summary)]
    parts.append(f"Little's law {closure_words(summary)}")
    parts.append(f"generator {lag_words(summary)}")
    if summary.slo is not None:
        parts.append(f"objective {summary.slo.verdict} ({summary.slo.share:.1%} of {summary.slo.wanted:.0%})")
    return "; ".join(parts)


def stability_words(summary: RunSummary) -> str:
    """The stability verdict, with the growth where it is unstable."""
    state = summary.stability
    if state.verdict == "unstable":
        return f"UNSTABLE (backlog grew by {state.growth:.0f}, z = {state.z:.1f}), not averaged"
    return state.verdict


def closure_words(summary: RunSummary) -> str:
    """The closure's verdict and remainder."""
    verdict = summary.little.verdict
    share = summary.little.closure.remainder_share
    return f"closed (remainder {100 * share:+.3f} %)" if verdict == "closed" else verdict


def interval_words(estimate: Estimate | TooShort | None, scale: float = 1.0) -> str:
    """A mean with its interval, or why there is none."""
    if isinstance(estimate, Estimate):
        return f"{scale * estimate.mean:.4g} ± {scale * estimate.half_width:.2g}"
    return "not averaged" if estimate is None else "too short"


def calibration_line(calibration: Calibration) -> str:
    """Capacity before and after, and whether the machine drifted."""
    before, after, drift = calibration.capacity, calibration.capacity_after, calibration.drift
    if not isinstance(before, Capacity):
        return f"capacity of {calibration.label}: {before if before is not None else 'not measured'}"
    words = f"capacity of {calibration.label}: {capacity_words(before)}"
    if isinstance(after, Capacity):
        words += f"; after the sweep {after.rate:.2f}"
    if isinstance(drift, Drift):
        words += (
            f": {drift.verdict} (the same requests took {drift.ratio:+.1%} time, "
            f"{drift.confidence:.0%} confidence {drift.low:+.1%} to {drift.high:+.1%})"
        )
        if drift.drifted:
            words += "; loads of this sweep are uncertain by as much"
    return words


def capacity_words(capacity: Capacity) -> str:
    """A capacity with its interval."""
    return f"{capacity.rate:.2f} req/s ({capacity.confidence:.0%} confidence {capacity.low:.2f} to {capacity.high:.2f})"


def comparison_lines(comparison: pd.DataFrame) -> list[str]:
    """Models against measurement, shortened to the terminal's width."""
    header = ["run", "model", "quantity", "measured", "predicted", "error", "verdict"]
    rows = []
    for row in comparison.to_dict("records"):
        error = DASH if math.isnan(row["error"]) else f"{100 * row['error']:+.1f} %"
        verdict = str(row["verdict"]).split(":")[0]
        cells = [row["run"].removesuffix("/0"), row["model"], with_unit(row["quantity"], row["unit"])]
        values = [in_unit(row[name], row["unit"]) for name in ("measured", "prediction")]
        rows.append([*cells, *values, error, verdict])
    return aligned(header, rows, left=(0, 1, 2, 6))
