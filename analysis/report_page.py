"""The one-page report: what was run in plain sentences, verdicts first, one table, figures. One file, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from analysis.capacity import Capacity, Drift
from analysis.figures.style import Drawn
from analysis.predictions.base import BAND, FAMILYWISE
from analysis.report_text import (
    capacity_words,
    closure_words,
    interval_words,
    lag_words,
    milliseconds,
    number,
    short_name,
    stability_words,
)
from analysis.runs import Run
from analysis.study import StudyResults
from analysis.summary import RunSummary

GOOD, BAD, OPEN = "good", "bad", "open"
SIGNS = {GOOD: "✓", BAD: "✗", OPEN: "?"}
QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class StudyFacts:
    """Everything the page is made from. ``loads``: planned and realised load of each run."""

    study: StudyResults
    runs: Sequence[Run]
    summaries: Sequence[RunSummary]
    loads: Sequence[tuple[float, float]]
    comparison: pd.DataFrame
    failures: Sequence[str]
    figures: Sequence[Drawn]


@dataclass(frozen=True)
class Verdict:
    """A line of the verdict list; ``state`` is ``good``, ``bad`` or ``open`` (not decided, or not testable)."""

    state: str
    topic: str
    words: str

    @property
    def sign(self) -> str:
        """The state without colour."""
        return SIGNS[self.state]


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
        sentences=sentences(facts),
        verdicts=verdicts(facts),
        rows=[_row(facts, i) for i in range(len(facts.summaries))],
        capacities=[c for c in (_capacity(calibration) for calibration in facts.study.calibrations) if c],
        comparison=[_comparison(row) for row in facts.comparison.to_dict("records")],
        band=f"{BAND:.0%}",
        familywise=f"{FAMILYWISE:.0%}",
        figures=[{"figure": figure, "svg": Markup(figure.svg)} for figure in facts.figures],
        methods=_methods(facts),
    )


def sentences(facts: StudyFacts) -> list[str]:
    """What was run, for somebody who was not there."""
    run, first = facts.runs[0], facts.summaries[0]
    meta = run.meta
    machine, versions = meta.get("machine") or {}, meta.get("versions") or {}
    spec = meta.get("spec") or {}
    requests = sum(summary.measured.arrived for summary in facts.summaries)
    seconds = sum(summary.window[1] - summary.window[0] for summary in facts.summaries)
    executor = ((meta.get("fingerprints") or {}).get("execution") or {}).get("executor", "model")
    model = spec.get("model", "a model")
    what = f"{len(facts.runs)} runs offered {requests} measured requests in {seconds:.0f} s of "
    if executor == "simulated":
        times = ((meta.get("fingerprints") or {}).get("execution") or {}).get("step_times", "a known function")
        found = [
            f"Simulated, not measured: {what}virtual time to an engine configured for {model}.",
            "The engine is simulated: scheduler, queue and records are the real engine’s own, but time is virtual and no "
            f"token was computed. Step times: {times}. What this says of the machine is no better than they are.",
        ]
    elif executor == "model":
        found = [f"{what}measurement to {model}."]
    else:
        found = [
            f"{what}measurement to an engine configured for {model}.",
            f"The engine is {executor}: its process, queue and clock are real, but a step’s time is modelled and no token "
            "was computed. It tests the laboratory, and says nothing about a model’s speed.",
        ]
    seats = sorted({summary.seats for summary in facts.summaries if summary.seats})
    budget = (meta.get("engine") or {}).get("max_num_batched_tokens")
    if seats:
        words = " or ".join(str(number_of_seats) for number_of_seats in seats)
        found.append(f"It had {words} seats (requests computed together) and a budget of {budget} tokens a step.")
    found.append(_arrival_sentence(facts))
    where = ", ".join(str(machine[key]) for key in ("processor", "system") if machine.get(key))
    stated = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "numpy") if name in versions)
    if where or stated:
        found.append(f"Machine: {where or 'not recorded'}. Software: {stated or 'not recorded'}.")
    if first.counts.arrived and any(summary.status != "complete" for summary in facts.summaries):
        found.append("Some runs were cut short; they are labelled, and nothing is averaged over them.")
    return found


def _arrival_sentence(facts: StudyFacts) -> str:
    kinds = sorted(
        {str(((run.meta.get("spec") or {}).get("arrivals") or {}).get("process", "unknown")) for run in facts.runs}
    )
    sentence = (
        f"Arrivals: {', '.join(kinds)}, drawn before each run from its own seeded stream, never delayed by the engine."
    )
    if any(sum(s.experiment == summary.experiment for s in facts.summaries) > 1 for summary in facts.summaries):
        sentence += " The runs of a sweep share one sequence of arrivals, scaled, and one list of lengths."
    return sentence


def verdicts(facts: StudyFacts) -> list[Verdict]:
    """The study's verdicts, what went wrong first."""
    summaries = facts.summaries
    found: list[Verdict | None] = [*_status(facts)]
    found += [_stability(summaries), _closure(summaries), _sampling(summaries), _lag(summaries)]
    found += [_drift(calibration.label, calibration.drift) for calibration in facts.study.calibrations]
    found += [_objective(summaries), *_models(facts.comparison)]
    order = {BAD: 0, OPEN: 1, GOOD: 2}
    return sorted((verdict for verdict in found if verdict is not None), key=lambda verdict: order[verdict.state])


def _status(facts: StudyFacts) -> list[Verdict]:
    bad = [s for s in facts.summaries if s.status != "complete" or not s.counts.agree]
    found = [Verdict(BAD, "Completeness", f"{s.name} is {s.status}: {s.counts}") for s in bad]
    total = [sum(getattr(s.counts, name) for s in facts.summaries) for name in ("arrived", "finished", "in_flight")]
    lost = sum(s.counts.refused + s.counts.failed + s.counts.aborted for s in facts.summaries)
    words = (
        f"every request is accounted for: {total[0]} arrived = {total[1]} finished + {lost} refused, failed or aborted + "
        f"{total[2]} still in flight when their run ended"
    )
    return found or [Verdict(GOOD, "Counts", words)]


def _stability(summaries: Sequence[RunSummary]) -> Verdict:
    unstable = [s for s in summaries if s.stability.verdict == "unstable"]
    undecided = [s for s in summaries if s.stability.verdict.startswith("undecided")]
    if unstable:
        named = "; ".join(
            f"{short_name(s, summaries)} (backlog + {s.stability.growth:.0f}, z = {s.stability.z:.1f})"
            for s in unstable
        )
        return Verdict(BAD, "Stability", f"{len(unstable)} of {len(summaries)} runs unstable and not averaged: {named}")
    if undecided:
        named = ", ".join(short_name(s, summaries) for s in undecided)
        return Verdict(OPEN, "Stability", f"not decided for {named}; the other runs are stable")
    return Verdict(GOOD, "Stability", f"no run's backlog grew by more than chance ({len(summaries)} runs)")


def _closure(summaries: Sequence[RunSummary]) -> Verdict:
    testable = [s for s in summaries if not s.little.verdict.startswith("not testable")]
    open_ones = [s for s in testable if s.little.verdict != "closed"]
    if not testable:
        return Verdict(OPEN, "Little’s law", "closure can't be tested: the target has no gauge")
    if open_ones:
        words = "; ".join(f"{short_name(s, summaries)}: {s.little.verdict}" for s in open_ones)
        return Verdict(BAD, "Little’s law", f"client and engine do not agree: {words}")
    worst = max(abs(s.little.closure.remainder_share) for s in testable)
    return Verdict(
        GOOD,
        "Little’s law",
        f"client’s stamps and engine’s gauge close in {len(testable)} of {len(testable)} runs; largest remainder "
        f"{100 * worst:.3f} % of the area (0.5 % allowed)",
    )


def _sampling(summaries: Sequence[RunSummary]) -> Verdict:
    words = {s.little.sampling.verdict.split(":")[0].split(" for ")[0] for s in summaries}
    differ = [short_name(s, summaries) for s in summaries if s.little.sampling.verdict == "differs"]
    agree = sum(s.little.sampling.verdict == "agrees" for s in summaries)
    if differ:
        return Verdict(BAD, "L = λW as an estimate", f"differs in {', '.join(differ)}")
    if agree == len(summaries):
        return Verdict(GOOD, "L = λW as an estimate", f"holds within the intervals in all {agree} runs")
    others = ", ".join(sorted(words - {"agrees"}))
    return Verdict(OPEN, "L = λW as an estimate", f"holds in {agree} of {len(summaries)} runs; the others: {others}")


def _lag(summaries: Sequence[RunSummary]) -> Verdict:
    late = [s for s in summaries if not s.kept_up]
    p99 = [1e3 * float(s.lag["p99_s"]) for s in summaries if s.lag.get("p99_s") is not None]
    spread = f"p99 lag {min(p99):.2f} to {max(p99):.2f} ms, 1 ms allowed" if p99 else "no lag recorded"
    if late:
        return Verdict(BAD, "Generator", f"fell behind in {len(late)} of {len(summaries)} runs ({spread})")
    return Verdict(GOOD, "Generator", f"sent on time in all {len(summaries)} runs ({spread})")


def _drift(label: str, drift: Drift | ValueError | None) -> Verdict:
    topic = f"Drift ({label})"
    if not isinstance(drift, Drift):
        return Verdict(OPEN, topic, "not known: " + (str(drift) if drift is not None else "measured once"))
    words = f"the same {drift.n} requests took {drift.ratio:+.1%} time after the sweep (5 % allowed)"
    return Verdict(BAD if drift.drifted else GOOD, topic, words)


def _objective(summaries: Sequence[RunSummary]) -> Verdict | None:
    judged = [s for s in summaries if s.slo is not None]
    if not judged:
        return None
    by = {
        kind: [f"{short_name(s, summaries)} {s.slo.share:.0%}" for s in judged if s.slo and s.slo.verdict == kind]
        for kind in ("met", "missed", "undecided")
    }
    words = "; ".join(f"{kind} by {', '.join(names)}" for kind, names in by.items() if names)
    return Verdict(BAD if by["missed"] else OPEN if by["undecided"] else GOOD, "Objective", words)


def _models(comparison: pd.DataFrame) -> list[Verdict]:
    found = []
    for model, rows in comparison.groupby("model", sort=False):
        kinds = rows["verdict"].str.split(":").str[0].value_counts()
        words = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        state = BAD if "differs" in kinds else GOOD if "agrees" in kinds else OPEN
        found.append(Verdict(state, f"Model {model}", f"{words} (of {len(rows)} statements)"))
    return found


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
    def ms(value: float) -> str:
        return number(1e3 * value, 1)

    def percent(value: float) -> str:
        return "-" if math.isnan(value) else f"{100 * value:+.1f} %"

    band = "-" if math.isnan(row["low"]) else f"{ms(row['low'])} to {ms(row['high'])}"
    return {
        "run": row["run"].removesuffix("/0"),
        "model": row["model"],
        "quantity": row["quantity"],
        "n": str(row["n"] or "-"),
        "measured": ms(row["measured"]),
        "predicted": ms(row["prediction"]),
        "band": band,
        "error": percent(row["error"]),
        "detectable": percent(row["detectable"]),
        "verdict": row["verdict"],
        "note": row["note"],
    }


def _methods(facts: StudyFacts) -> str:
    windows = sorted({f"{s.window[1] - s.window[0]:g} s after {s.window[0]:g} s of warm-up" for s in facts.summaries})
    return (
        f"Latencies count from the intended arrival to the client's stamp. Measured windows: {'; '.join(windows)}. "
        "Percentiles are of the inverted CDF with censored requests at infinity, shown where at least ten effective "
        "observations (n over the correlation time of the exceedances) lie beyond; intervals are distribution-free, 95 %. "
        "Means have batch-means intervals where the run holds 100 correlation times. Stability is the backlog's growth "
        "over √(n(ca² + cs²)), unstable above 2. Capacity is the completion rate of a closed loop with two clients a seat, "
        "before and after the sweep. Models are held against the band in which runs of this length and warm-up would lie."
    )
