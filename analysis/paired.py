"""Two studies side by side: the same requests under two settings, their difference with an interval.

Runs are paired by experiment, point and replication, and requests by their place in the arrival order. Common random numbers
(one seed, one length list) take most of the noise out of the difference; where the two did not get the same requests, that
is said.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intervals import Estimate, TooShort, batch_means, replications
from analysis.predictions.base import FAMILYWISE
from analysis.runs import Run
from analysis.stability import stability
from analysis.study import StudyResults, name_of, replication_of
from analysis.summary import latencies
from analysis.tables import aligned

Array = NDArray[np.float64]

METRICS = ("ttft", "tpot", "e2e")
SAME_GAPS = 1e-3  # relative: arrivals drawn from one sequence but scaled to another rate are not the same


def paired_differences(first: StudyResults, second: StudyResults) -> pd.DataFrame:
    """One row for each paired point and metric: means (s) in both, second minus first, its interval, verdict.

    With two or more replications the interval is over them; with one it comes from batch means over the paired requests,
    or the row says "too short". ``attrs["text"]`` holds the table for a terminal.

    Raises:
        ValueError: no run of the one has a counterpart in the other.
    """
    pairs = _pairs(first, second)
    if not pairs:
        raise ValueError(
            f"{first.path} and {second.path} have no run in common (experiment, point and replication must be equal): "
            f"{sorted({point_of(run) for run in first.runs})} and {sorted({point_of(run) for run in second.runs})}"
        )
    confidence = 1 - FAMILYWISE / (len(METRICS) * len(pairs))  # Bonferroni: intervals, not only verdicts, hold together
    rows = [_row(point, metric, runs, confidence) for point, runs in pairs.items() for metric in METRICS]
    table = pd.DataFrame(rows)
    table.attrs["text"] = _text(table, first, second, confidence)
    return table


def _pairs(first: StudyResults, second: StudyResults) -> dict[str, list[tuple[Run, Run]]]:
    others = {(point_of(run), replication_of(run)): run for run in second.runs}
    pairs: dict[str, list[tuple[Run, Run]]] = {}
    for run in first.runs:
        other = others.get((point_of(run), replication_of(run)))
        if other is not None:
            pairs.setdefault(point_of(run), []).append((run, other))
    return pairs


def point_of(run: Run) -> str:
    """``experiment/point``: what replications of one another share."""
    return f"{run.meta.get('experiment')}/{run.meta.get('point')}" if "experiment" in run.meta else name_of(run)


def _row(point: str, metric: str, runs: list[tuple[Run, Run]], confidence: float) -> dict[str, object]:
    series = [_paired(metric, a, b) for a, b in runs]
    both = np.concatenate([np.stack(pair) for pair in series], axis=1)
    n = both.shape[1]
    row = {"point": point, "metric": metric, "n": n, "replications": len(runs), "note": _same_requests(runs)}
    unknown = {"first": math.nan, "second": math.nan, "difference": math.nan, "low": math.nan, "high": math.nan}
    if any(stability(run).verdict == "unstable" for pair in runs for run in pair):
        return {**row, **unknown, "verdict": "unstable"}
    if n == 0 or not np.isfinite(both).all():
        return {**row, **unknown, "verdict": "too short"}
    means = {"first": float(both[0].mean()), "second": float(both[1].mean())}
    try:
        estimate = _difference(series, confidence)
    except TooShort:
        found = {**unknown, **means, "difference": means["second"] - means["first"]}
        return {**row, **found, "verdict": "too short"}
    verdict = "no difference seen" if estimate.contains(0.0) else "faster" if estimate.mean < 0 else "slower"
    interval = {"difference": estimate.mean, "low": estimate.low, "high": estimate.high}
    return {**row, **means, **interval, "verdict": verdict}


def _difference(series: list[tuple[Array, Array]], confidence: float) -> Estimate:
    if len(series) > 1:
        return replications([float((b - a).mean()) for a, b in series], confidence)
    a, b = series[0]
    return batch_means(b - a, confidence)


def _paired(metric: str, a: Run, b: Run) -> tuple[Array, Array]:
    x, y = latencies(a)[metric], latencies(b)[metric]
    n = min(x.size, y.size)
    defined = ~(np.isnan(x[:n]) | np.isnan(y[:n]))
    return x[:n][defined], y[:n][defined]


def _same_requests(runs: list[tuple[Run, Run]]) -> str:
    for a, b in runs:
        x, y = (run.measured.sort_values("intended_s", kind="stable") for run in (a, b))
        n = min(len(x), len(y))
        lengths = (x["max_tokens"].to_numpy()[:n] == y["max_tokens"].to_numpy()[:n]).all()
        gaps = [np.diff(run["intended_s"].to_numpy(dtype=float)[:n]).sum() for run in (x, y)]
        if not lengths:
            return "not the same requests: paired by place only"
        if abs(gaps[0] - gaps[1]) > SAME_GAPS * gaps[0]:
            return f"same lengths, but arrivals {gaps[0] / gaps[1] - 1:+.1%} as fast in the second"
    return "same requests"


def _text(table: pd.DataFrame, first: StudyResults, second: StudyResults, confidence: float) -> str:
    def ms(value: object) -> str:
        return "-" if math.isnan(float(str(value))) else f"{1e3 * float(str(value)):.1f}"

    rows = []
    for row in table.to_dict("records"):
        interval = "-" if math.isnan(row["low"]) else f"{ms(row['low'])} to {ms(row['high'])}"
        cells = [row["point"], row["metric"].upper(), str(row["n"]), ms(row["first"]), ms(row["second"])]
        rows.append([*cells, ms(row["difference"]), interval, row["verdict"], row["note"]])
    header = ["point", "mean of", "n", "first", "second", "difference", "interval", "verdict", "requests"]
    return "\n".join(
        [
            f"first: {first.path}   second: {second.path}   (ms; second minus first)",
            *aligned(header, rows, left=(0, 1, 7, 8)),
            f"confidence of each interval {100 * confidence:.2f} %: all together {1 - FAMILYWISE:.0%} (Bonferroni)",
        ]
    )
