"""The methods paragraph: how the numbers of a study came about, ready to be put into a paper."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.capacity import DRIFT_LIMIT, Capacity, Drift
from analysis.predictions.base import BAND, FAMILYWISE
from analysis.study import StudyResults, known_queue_of
from analysis.summary import RunSummary
from analysis.tails import LEAST_BEYOND


def methods(study: StudyResults, summaries: Sequence[RunSummary], comparison: pd.DataFrame) -> list[str]:
    """Sentences on the system, the windows and counts, the estimators, the capacity and its drift, the models."""
    return [
        part
        for part in (
            _system(study),
            _windows(summaries),
            _estimators(summaries),
            _capacity(study),
            _models(comparison),
            _generator(summaries),
        )
        if part
    ]


def _system(study: StudyResults) -> str:
    engines = [run for run in study.runs if known_queue_of(run) is None]
    if not engines:
        return _queues(study)
    meta = engines[0].meta
    execution = (meta.get("fingerprints") or {}).get("execution") or {}
    spec, engine, versions = meta.get("spec") or {}, meta.get("engine") or {}, meta.get("versions") or {}
    parts = [str(spec["model"]) if spec.get("model") else "an engine whose model was not recorded"]
    parts += [f"{key} {execution[key]}" for key in ("dtype", "quantization", "threads") if execution.get(key)]
    words = f"The system under test was Latency Lab's engine with {', '.join(parts)}"
    if engine.get("max_num_seqs"):
        words += f" ({engine.get('policy', 'fcfs')}, {engine.get('max_num_batched_tokens')} tokens a step)"
    processor = (meta.get("machine") or {}).get("processor")
    words += f", on {processor}" if processor else ""
    stated = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "numpy") if name in versions)
    words += f"; {stated}." if stated else "."
    if meta.get("simulated"):
        words = f"Nothing was measured: the study ran in virtual time. {words}"
    revision = (meta.get("git") or {}).get("commit")
    return words + (f" Revision {str(revision)[:12]}." if revision else "") + _queues(study)


def _queues(study: StudyResults) -> str:
    """Runs that tested the instrument itself."""
    names = {str(run.meta.get("experiment")) for run in study.runs if known_queue_of(run) is not None}
    if not names:
        return ""
    return f" {' and '.join(sorted(names))} offered the load to a queue simulated by the client, whose theory is known."


def _windows(summaries: Sequence[RunSummary]) -> str:
    starts = [summary.window[0] for summary in summaries]
    spans = [summary.window[1] - summary.window[0] for summary in summaries]
    counts = [summary.measured.arrived for summary in summaries]
    return (
        f"Each of {len(summaries)} runs offered its load for {_span(starts)} s of warm-up, which is left out, and "
        f"{_span(spans)} s of measurement ({_counts(counts)} requests a run, {sum(counts)} in all). Arrivals were drawn "
        "before each run from their own seeded stream, went on until the last measured request had ended, and never waited "
        "for the system. Latencies count from the intended arrival to the client's stamp."
    )


def _estimators(summaries: Sequence[RunSummary]) -> str:
    points: dict[tuple[str, str], int] = {}
    for summary in summaries:
        key = summary.experiment, summary.point
        points[key] = points.get(key, 0) + 1
    most = max(points.values())
    over = (
        f" Points were run {_span(list(points.values()))} times with new seeds; medians of such points are the mean of the "
        "replications' medians with Student's interval."
        if most > 1
        else ""
    )
    return (
        f"Percentiles are of the inverted CDF, censored requests at infinity, shown where at least {LEAST_BEYOND} effective "
        "observations (n over the correlation time of the exceedances) lie beyond; their intervals are distribution-free, "
        f"95 %.{over} Means have batch-means intervals where the run holds 100 correlation times, else none. Attainment has "
        "Wilson's interval on the effective n. Stability is the backlog's growth over √(n(ca² + cs²)), unstable above 2; "
        "unstable runs are not averaged. Little's law compares the engine's gauge with the client's stamps (0.5 % of the "
        "area allowed)."
    )


def _capacity(study: StudyResults) -> str:
    words = []
    for calibration in study.calibrations:
        found, drift = calibration.capacity, calibration.drift
        if not isinstance(found, Capacity):
            continue
        part = f"{calibration.label} {found.rate:.3g}/s (95 % {found.low:.3g} to {found.high:.3g}, n = {found.n}"
        words.append(part + (f"; drift {drift.ratio:+.1%})" if isinstance(drift, Drift) else "; drift not known)"))
    if not words:
        return ""
    return (
        "Capacity, the unit of load, is the completion rate of a closed loop with two clients a seat: "
        f"{', '.join(words)}. Drift is the change in the time that the same requests took after the sweep; more than "
        f"{DRIFT_LIMIT:.0%} is named."
    )


def _models(comparison: pd.DataFrame) -> str:
    if comparison.empty:
        return ""
    names = ", ".join(dict.fromkeys(comparison["model"]))
    return (
        f"Models ({names}) are held against the band in which {BAND:.0%} of runs of the same length and warm-up would lie; "
        f"all {len(comparison)} verdicts together err with probability {FAMILYWISE:.0%} (Holm)."
    )


def _generator(summaries: Sequence[RunSummary]) -> str:
    p99 = [1e3 * float(s.lag["p99_s"]) for s in summaries if s.lag.get("p99_s") is not None]
    if not p99:
        return ""
    return f"The generator's 99th percentile of lateness was {min(p99):.2f} to {max(p99):.2f} ms."


def _counts(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
