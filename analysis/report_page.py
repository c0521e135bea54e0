"""The one-page report: what was run in plain sentences, verdicts first, tables, figures. One file, no network."""

from __future__ import annotations

import math
from typing import Any

import jinja2
from markupsafe import Markup

from analysis.capacity import Capacity, Drift
from analysis.intervals import Estimate, TooShort
from analysis.methods import methods
from analysis.predictions.base import BAND, FAMILYWISE, TOO_COARSE
from analysis.report_facts import StudyFacts, sentences
from analysis.report_text import (
    capacity_words,
    closure_words,
    hit_rate,
    interval_words,
    mean_milliseconds,
    milliseconds,
    number,
    short_name,
    stability_words,
)
from analysis.report_verdicts import verdicts
from analysis.summary import lag_words
from analysis.tables import in_unit, with_unit

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def render(facts: StudyFacts) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html").render(
        title=f"Latency Lab: {facts.study.name}",
        style=facts.style,
        sentences=sentences(facts),
        verdicts=verdicts(facts),
        rows=[_row(facts, i) for i in range(len(facts.summaries))],
        little=[_little(facts, i) for i in range(len(facts.summaries))],
        capacities=[c for c in (_capacity(calibration) for calibration in facts.study.calibrations) if c],
        comparison=[_comparison(row) for row in facts.comparison.to_dict("records")],
        band=f"{BAND:.0%}",
        coarse=f"{TOO_COARSE:.0%}",
        familywise=f"{FAMILYWISE:.0%}",
        figures=[{"figure": figure, "svg": Markup(figure.svg)} for figure in facts.figures],
        methods=" ".join(methods(facts.study, facts.summaries, facts.comparison)),
    )


def _little(facts: StudyFacts, i: int) -> dict[str, str]:
    """Both statements of Little's law: the closure between two observers, and L = λW as an estimate."""
    summary = facts.summaries[i]
    law, closure = summary.little, summary.little.closure
    between = sum(closure.stages.get(name, 0.0) for name in ("lag", "cap_wait", "transit_in", "transit_out"))
    product = _product(law.sampling.lam, law.sampling.W_engine)
    testable = not law.verdict.startswith("not testable")
    return {
        "name": short_name(summary, facts.summaries),
        "client": number(closure.client_area, 1),
        "gauge": number(closure.gauge_area, 1) if testable else "-",
        "between": number(between, 2),
        "remainder": f"{100 * closure.remainder_share:+.3f} %" if testable else "-",
        "closure": law.verdict.split(":")[0],
        "L": interval_words(law.sampling.L) if summary.stable else "not averaged",
        "product": number(product, 2) if summary.stable else "-",
        "sampling": law.sampling.verdict.split(":")[0] if summary.stable else "-",
    }


def _product(rate: Estimate | TooShort, time: Estimate | TooShort) -> float:
    """λW, nan where either is too short."""
    known = isinstance(rate, Estimate) and isinstance(time, Estimate)
    return rate.mean * time.mean if known else math.nan  # type: ignore[union-attr]


def _row(facts: StudyFacts, i: int) -> dict[str, Any]:
    summary, (planned, realised) = facts.summaries[i], facts.loads[i]
    latencies = {
        name: [milliseconds(latency, q) for q in QUANTILES]
        for name, latency in (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e))
    }
    counts = summary.measured
    return {
        "name": short_name(summary, facts.summaries),
        "planned": number(planned, 2),
        "realised": number(realised, 2),
        "rates": [number(rate, 2) for rate in (summary.load.offered, summary.load.accepted, summary.load.completed)],
        "arrived": counts.arrived,
        "ends": f"{counts.finished} / {counts.refused} / {counts.failed} / {counts.aborted} / {counts.in_flight}",
        "latencies": latencies,
        "mean": interval_words(summary.e2e.mean, 1e3),
        "tpot_mean": mean_milliseconds(summary.tpot),
        "itl_mean": mean_milliseconds(summary.itl),
        "hits": hit_rate(summary),
        "evictions": number(summary.engine.evictions, 0),
        "preemptions": number(summary.engine.preemptions, 0),
        "stability": stability_words(summary),
        "unstable": summary.stability.verdict == "unstable",
        "closure": closure_words(summary),
        "lag": lag_words(summary),
        "busy": number(100 * summary.busy, 0),
        "occupancy": number(100 * summary.occupancy, 0),
        "slo": "" if summary.slo is None else f"{summary.slo.share:.1%} {summary.slo.verdict}",
        "goodput": "" if summary.slo is None else number(summary.slo.goodput, 2),
    }


def _capacity(calibration: Any) -> dict[str, str] | None:
    before, after, drift = calibration.capacity, calibration.capacity_after, calibration.drift
    if not isinstance(before, Capacity):
        return None
    return {
        "label": calibration.label,
        "before": capacity_words(before),
        "after": capacity_words(after) if isinstance(after, Capacity) else "-",
        "drift": f"{drift.verdict}: {drift.ratio:+.1%} ({drift.low:+.1%} to {drift.high:+.1%})"
        if isinstance(drift, Drift)
        else "not known",
    }


def _comparison(row: dict[Any, Any]) -> dict[str, str]:
    def shown(name: str) -> str:
        return in_unit(row[name], row["unit"])

    def percent(value: float) -> str:
        return "-" if math.isnan(value) else f"{100 * value:+.1f} %"

    # No time is below 0: a band that reaches there bounds from above alone.
    band = f"{shown('low')} to {shown('high')}" if row["low"] > 0 else f"≤ {shown('high')}"
    band = "-" if math.isnan(row["low"]) else band
    return {
        "run": row["run"].removesuffix("/0"),
        "model": row["model"],
        "quantity": with_unit(row["quantity"], row["unit"]),
        "n": str(row["n"] or "-"),
        "measured": shown("measured"),
        "predicted": shown("prediction"),
        "band": band,
        "error": percent(row["error"]),
        "detectable": percent(row["detectable"]),
        "verdict": row["verdict"],
        "note": row["note"],
    }
