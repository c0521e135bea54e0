"""The verdicts of a study, what went wrong first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.capacity import Drift
from analysis.report_facts import StudyFacts
from analysis.report_text import short_name
from analysis.run_checks import Checked, operational_laws, planned_warmup, steady_steps
from analysis.summary import RunSummary, pooled_lag

GOOD, BAD, OPEN = "good", "bad", "open"
SIGNS = {GOOD: "✓", BAD: "✗", OPEN: "?"}


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


def verdicts(facts: StudyFacts) -> list[Verdict]:
    """The study's verdicts, what went wrong first."""
    summaries = facts.summaries
    found: list[Verdict | None] = [*_status(facts)]
    found += [_stability(summaries), _closure(summaries), _sampling(summaries), _lag(summaries)]
    found += [_drift(calibration.label, calibration.drift) for calibration in facts.study.calibrations]
    stable = [run for run, summary in zip(facts.runs, summaries, strict=True) if summary.stable]
    found += [_warmup(planned_warmup(stable)), _laws(operational_laws(stable))]
    found += [_steps(steady_steps(stable, facts.study.step_time_of))]
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
    open_ones = [s for s in testable if s.little.verdict.startswith("open")]
    short = [short_name(s, summaries) for s in testable if s.little.verdict.startswith("too short")]
    if not testable:
        return Verdict(OPEN, "Little’s law", "closure can't be tested: the target has no gauge")
    if open_ones:
        words = "; ".join(f"{short_name(s, summaries)}: {s.little.verdict}" for s in open_ones)
        return Verdict(BAD, "Little’s law", f"client and engine do not agree: {words}")
    if short:
        return Verdict(OPEN, "Little’s law", f"too short to tell a remainder from a pause: {', '.join(short)}")
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
    late = [s for s in summaries if s.fell_behind]
    pooled = pooled_lag(summaries)
    state = BAD if late or pooled.startswith("fell") else GOOD if pooled.startswith("kept up") else OPEN
    shares = [s.lag_share["ttft"] for s in summaries if s.stable and math.isfinite(s.lag_share["ttft"])]
    words = f"{pooled} in all runs; fell behind in {len(late)} of {len(summaries)} runs"
    return Verdict(state, "Generator", words + (f"; at most {max(shares):.2%} of a mean TTFT is lag" if shares else ""))


def _drift(label: str, drift: Drift | ValueError | None) -> Verdict:
    topic = f"Drift ({label})"
    if not isinstance(drift, Drift):
        return Verdict(OPEN, topic, "not known: " + (str(drift) if drift is not None else "measured once"))
    words = (
        f"{drift.verdict}: the same {drift.n} requests took {drift.ratio:+.1%} time after the sweep "
        f"({drift.confidence:.0%} confidence {drift.low:+.1%} to {drift.high:+.1%}; 5 % allowed)"
    )
    return Verdict({"drifted": BAD, "steady": GOOD}.get(drift.verdict, OPEN), topic, words)


def _warmup(checked: Checked) -> Verdict | None:
    if not checked.number:
        return None
    words = f"MSER-5 would cut no more than was planned at {len(checked.held)} of {checked.number} points"
    words += _others(checked, "more at")
    # A correct point is named in one case of forty: open, not bad.
    return Verdict(GOOD if len(checked.held) == checked.number else OPEN, "Warm-up", words)


def _laws(found: Mapping[str, Checked]) -> Verdict | None:
    applied = {law: checked for law, checked in found.items() if checked.number}
    if not applied:
        return None
    words = "; ".join(
        f"{law} in {len(checked.held)} of {checked.number} runs"
        + (f", not in {', '.join(checked.broken)}" if checked.broken else "")
        + (f", {len(checked.unknown)} too short" if checked.unknown else "")
        for law, checked in applied.items()
    )
    broken = any(checked.broken for checked in applied.values())
    all_held = all(len(checked.held) == checked.number for checked in applied.values())
    return Verdict(BAD if broken else GOOD if all_held else OPEN, "Operational laws", words)


def _steps(checked: Checked) -> Verdict | None:
    if not checked.number:
        return None
    words = f"a step's time kept within 5 % of its start's in {len(checked.held)} of {checked.number} runs"
    words += _others(checked, "not in")
    state = BAD if checked.broken else GOOD if len(checked.held) == checked.number else OPEN
    return Verdict(state, "Trend within runs", words)


def _others(checked: Checked, broken: str) -> str:
    """Where it did not hold, and how many can't be told."""
    words = f"; {broken} {', '.join(checked.broken)}" if checked.broken else ""
    return words + (f"; {len(checked.unknown)} too short to tell" if checked.unknown else "")


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
        state = BAD if "differs" in kinds else GOOD if 2 * kinds.get("agrees", 0) > len(rows) else OPEN
        found.append(Verdict(state, f"Model {model}", f"{words} (of {len(rows)} statements)"))
    return found
