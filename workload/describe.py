"""The plan of a study, before anything runs: what each point offers, for how long, and how sharp its answer can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workload.experiment import RunSpec, Study

NORMAL_975 = 1.959964  # of the standard normal law, for 95 % confidence


@dataclass(frozen=True)
class PlanRow:
    """One point of a study (all its replications).

    Attributes:
        runs: replications x repeats.
        rate: requests/s; ``None`` where only a load is known and no capacity was given.
        load: share of the capacity; ``None`` where only a rate is known and no capacity was given.
        seconds: warm-up and measurement of one run; ``None`` where it is counted in requests at an unknown rate.
        requests: measured requests of one run expected; ``None`` where unknown.
        half_width: half-width of the 95 % interval of the mean time in system, relative to it, if the system were M/M/1
            at this load (a yardstick; replications pooled). ``None`` where load or requests are unknown, or the load is
            1 or more.
    """

    experiment: str
    point: str
    runs: int
    process: str
    rate: float | None
    load: float | None
    seconds: float | None
    requests: float | None
    half_width: float | None


def describe(study: Study, capacity: Callable[[RunSpec], float] | None = None) -> list[PlanRow]:
    """One row for each point of ``study``.

    Args:
        study: the expanded study.
        capacity: completions/s of a run's engine and request mix, where it is known already.
    """
    points: dict[tuple[str, str], list[RunSpec]] = {}
    for run in study.runs:
        points.setdefault((run.experiment, run.point), []).append(run)
    return [_row(study, runs, capacity) for runs in points.values()]


def mm1_half_width(load: float, requests: float) -> float:
    """Relative half-width of a 95 % interval for the mean number (or time) in system of M/M/1 over ``requests`` arrivals.

    From the asymptotic variance 2 rho (1 + rho) / (1 - rho)^4 of the number in system (in mean service times; Whitt 1989,
    "Planning queueing simulations", Management Science 35).
    """
    return NORMAL_975 * math.sqrt(2 * (1 + load) / ((1 - load) ** 2 * requests))


def _row(study: Study, runs: list[RunSpec], capacity: Callable[[RunSpec], float] | None) -> PlanRow:
    run = runs[0]
    arrivals = run.arrivals
    load = getattr(arrivals, "load", None)
    of = study.capacity_run(run)
    known = of.target.capacity if of.target is not None else capacity(of) if capacity is not None else None
    if load is not None and known is not None:
        arrivals = arrivals.at_rate(load * known)
    rate = arrivals.mean_rate
    if load is None and rate is not None and known is not None:
        load = rate / known
    seconds = _seconds(run, rate)
    requests = float(run.measure.requests) if run.measure.requests is not None else None
    if requests is None and run.measure.seconds is not None:
        before = run.warmup.seconds or 0.0
        until = arrivals.expected_count(before + run.measure.seconds)
        requests = None if until is None else until - (arrivals.expected_count(before) or 0.0)
    steady = load is not None and requests is not None and 0 < load < 1 and requests > 0
    return PlanRow(
        experiment=run.experiment,
        point=run.point,
        runs=len(runs),
        process=run.arrivals.process,
        rate=rate,
        load=load,
        seconds=seconds,
        requests=requests,
        half_width=mm1_half_width(load, requests * (1 + max(r.replication for r in runs)))
        if steady and load is not None and requests is not None
        else None,
    )


def _seconds(run: RunSpec, rate: float | None) -> float | None:
    total = 0.0
    for span in (run.warmup, run.measure):
        if span.seconds is not None:
            total += span.seconds
        elif span.requests:
            if rate is None:
                return None
            total += span.requests / rate
    return total


def plan_text(study: Study, capacity: Callable[[RunSpec], float] | None = None) -> str:
    """The plan as a table of plain text, what is unknown left as a dash."""
    rows = describe(study, capacity)
    head = ("experiment", "point", "runs", "arrivals", "req/s", "load", "seconds", "requests", "±")
    table = [head] + [
        (
            row.experiment,
            row.point,
            str(row.runs),
            row.process,
            _number(row.rate),
            _number(row.load),
            _number(row.seconds),
            _number(row.requests),
            "-" if row.half_width is None else f"±{100 * row.half_width:.0f} %",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    runs = sum(row.runs for row in rows)
    known = [row.seconds for row in rows if row.seconds is not None]
    total = f"{sum(row.runs * (row.seconds or 0) for row in rows):.3g} s" + (
        " and more" if len(known) < len(rows) else ""
    )
    if any(row.half_width is not None for row in rows):
        lines.append(
            "±: how sharp the mean time in system would be (half of its 95 % interval) if the system were the M/M/1 queue"
        )
    lines.append(
        f"{_plural(len(rows), 'point')}, {_plural(runs, 'run')}, warm-up and measurement {total} "
        "(calibration and cooldown come on top)"
    )
    return "\n".join(lines)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
