"""What a report is made from, and what was run in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.figures.points import Point, points_of
from analysis.figures.style import Drawn
from analysis.runs import Run
from analysis.study import StudyResults, known_queue_of
from analysis.summary import RunSummary


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
    style: str = "screen"


def sentences(facts: StudyFacts) -> list[str]:
    """What was run, for somebody who was not there."""
    meta = facts.runs[0].meta
    machine, versions = meta.get("machine") or {}, meta.get("versions") or {}
    found = [*_engine(facts), *_experiments(facts), _arrivals(facts)]
    where = ", ".join(str(machine[key]) for key in ("processor", "system") if machine.get(key))
    stated = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "numpy") if name in versions)
    if where or stated:
        found.append(f"Machine: {where or 'not recorded'}. Software: {stated or 'not recorded'}.")
    if any(summary.status != "complete" for summary in facts.summaries):
        found.append("Some runs were cut short; they are labelled, and nothing is averaged over them.")
    return found


def _engine(facts: StudyFacts) -> Iterator[str]:
    """How much was offered to what."""
    pairs = list(zip(facts.runs, facts.summaries, strict=True))
    queues = [pair for pair in pairs if known_queue_of(pair[0]) is not None]
    engines = [pair for pair in pairs if known_queue_of(pair[0]) is None]
    if queues:
        yield _known_queues(queues)
    if not engines:
        return
    meta = engines[0][0].meta
    execution = (meta.get("fingerprints") or {}).get("execution") or {}
    executor, model = execution.get("executor", "model"), (meta.get("spec") or {}).get("model", "a model")
    what = _amount([summary for _, summary in engines])
    if executor == "simulated":
        yield f"Simulated, not measured: {what}virtual time to an engine configured for {model}."
        yield (
            "The engine is simulated: scheduler, queue and records are the real engine’s own, but time is virtual and no "
            f"token was computed. Step times: {execution.get('step_times', 'a known function')}. What this says of the "
            "machine is no better than they are."
        )
    elif executor == "model":
        yield f"{what}measurement to {model}."
    else:
        yield f"{what}measurement to an engine configured for {model}."
        yield (
            f"The engine is {executor}: its process, queue and clock are real, but a step’s time is modelled and no token "
            "was computed. It tests the laboratory, and says nothing about a model’s speed."
        )
    seats = sorted({summary.seats for _, summary in engines if summary.seats})
    budget = (meta.get("engine") or {}).get("max_num_batched_tokens")
    if seats:
        words = " or ".join(str(number_of_seats) for number_of_seats in seats)
        plural = "" if seats == [1] else "s"
        yield f"It had {words} seat{plural} (requests computed together) and a budget of {budget} tokens a step."


def _known_queues(pairs: Sequence[tuple[Run, RunSummary]]) -> str:
    """What stood in the engine's place, and why."""
    shapes = []
    for run, _ in pairs:
        queue = known_queue_of(run) or {}
        servers = "1 server" if queue["servers"] == 1 else f"{queue['servers']} servers"
        shapes.append(f"{servers}, service times {_law(queue['service'])} s")
    simulated = any(run.meta.get("simulated") for run, _ in pairs)
    kind = "virtual time" if simulated else "measurement"
    return (
        f"{_amount([summary for _, summary in pairs])}{kind} to a known queue, not an engine "
        f"({'; '.join(dict.fromkeys(shapes))}): textbooks know its answers, so it tests the instrument."
    )


def _amount(summaries: Sequence[RunSummary]) -> str:
    requests = sum(summary.measured.arrived for summary in summaries)
    seconds = sum(summary.window[1] - summary.window[0] for summary in summaries)
    runs = f"{len(summaries)} run{'s' if len(summaries) > 1 else ''}"
    return f"{runs} offered {requests} measured requests in {seconds:.0f} s of "


def _experiments(facts: StudyFacts) -> Iterator[str]:
    """One sentence an experiment: what arrived, how much of it, for how long."""
    points = points_of(list(zip(facts.runs, facts.summaries, strict=True)))
    for name in dict.fromkeys(point.experiment for point in points):
        group = [point for point in points if point.experiment == name]
        run, _ = group[0].pairs[0]
        spec = run.meta.get("spec") or {}
        process = str((spec.get("arrivals") or {}).get("process", "unknown"))
        words = f"{name or 'Run'}: {process} arrivals at {_and([_offered(point) for point in group])}"
        counts = [summary.measured.arrived for point in group for summary in point.summaries]
        words += f"; {_range(counts)} requests a run"
        starts = {summary.window[0] for point in group for summary in point.summaries}
        words += f" after {min(starts):g} s of warm-up" if len(starts) == 1 and min(starts) > 0 else ""
        most = max(len(point.pairs) for point in group)
        words += f"; {most} replications of each point" if most > 1 else ""
        lengths = [
            f"{kind} {_law(spec[key])}" for key, kind in (("prompt", "prompts"), ("output", "outputs")) if spec.get(key)
        ]
        lengths = [] if known_queue_of(run) is not None else lengths
        yield words + (f"; {', '.join(lengths)} tokens." if lengths else ".")


def _offered(point: Point) -> str:
    spec = (point.pairs[0][0].meta.get("spec") or {}).get("arrivals") or {}
    if spec.get("load") is not None:
        return f"load {spec['load']:g}"
    planned = point.pairs[0][1].load.planned
    return f"{planned:.3g} requests/s" if planned == planned else point.point


def _law(law: Any) -> str:
    """A law of lengths in words: its name, mean or value."""
    if not isinstance(law, dict):
        return str(law)
    kind = str(law.get("dist", ""))
    middle = next(
        (f"{key} {law[key]:g}" for key in ("mean", "median", "value") if isinstance(law.get(key), int | float)), ""
    )
    return f"{kind} {middle}".strip()


def _and(parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _arrivals(facts: StudyFacts) -> str:
    kinds = {str(((run.meta.get("spec") or {}).get("arrivals") or {}).get("process", "unknown")) for run in facts.runs}
    closed = kinds & {"closed", "sessions"}
    if closed == kinds:
        words = "Clients waited for an answer before they sent the next request (closed loop): a slow engine is offered less."
    else:
        words = "Arrivals were drawn before each run from their own seeded stream and never delayed by the engine."
        words += " Where clients wait for answers (closed loop), a slow engine is offered less." if closed else ""
    if any(sum(s.experiment == summary.experiment for s in facts.summaries) > 1 for summary in facts.summaries):
        words += " The runs of a sweep share one sequence of arrivals, scaled, and one list of lengths."
    return words
