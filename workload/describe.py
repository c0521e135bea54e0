"""The plan of a study, before anything runs: what each point offers, for how long, and how sharp its answer can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        seconds: warm-up and measurement of one run; without the part that is counted in requests at an unknown rate.
        per_capacity: that part, as requests / load: over the capacity (requests/s) it is seconds. 0 where the rate is known;
            nan where there is no load either.
        requests: measured requests of one run expected; ``None`` where unknown.
        half_width: half-width of the 95 % interval of the mean time in system, relative to it, if the system were M/M/1
            at this load (a yardstick; replications pooled). ``None`` where load or requests are unknown, the load is 1 or
            more, or ``limits`` make it another queue.
        limits: what keeps clients from being answered, in words: a cap on requests in flight, a timeout.
    """

    experiment: str
    point: str
    runs: int
    process: str
    rate: float | None
    load: float | None
    seconds: float
    per_capacity: float
    requests: float | None
    half_width: float | None
    limits: str


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
    rate = arrivals.mean_rate if load is None or known is None else load * known
    if load is None and rate is not None and known is not None:
        load = rate / known
    requests = float(run.measure.requests) if run.measure.requests is not None else None
    if requests is None and run.measure.seconds is not None:
        before = run.warmup.seconds or 0.0
        until = arrivals.expected_count(before + run.measure.seconds)
        requests = None if until is None else until - (arrivals.expected_count(before) or 0.0)
    limits = _limits(run)
    steady = load is not None and requests is not None and 0 < load < 1 and requests > 0 and not limits
    fixed_s, counted = run_extent(run)
    over_capacity = math.nan if load is None else counted / load
    return PlanRow(
        experiment=run.experiment,
        point=run.point,
        runs=len(runs),
        process=run.arrivals.process,
        rate=rate,
        load=load,
        seconds=fixed_s + (counted / rate if rate is not None else 0.0),
        per_capacity=over_capacity if counted and rate is None else 0.0,
        requests=requests,
        half_width=mm1_half_width(load, requests * (1 + max(r.replication for r in runs)))
        if steady and load is not None and requests is not None
        else None,
        limits=limits,
    )


def run_extent(run: RunSpec) -> tuple[float, int]:
    """Warm-up and measurement of ``run``: the seconds, and the arrivals that take as long as their rate makes it."""
    spans = (run.warmup, run.measure)
    return sum(span.seconds or 0.0 for span in spans), sum(span.requests or 0 for span in spans)


def _limits(run: RunSpec) -> str:
    found = [] if run.max_concurrency is None else [f"at most {run.max_concurrency} requests in flight"]
    found += [] if run.timeout is None else [f"clients give up after {run.timeout.seconds:g} s"]
    return ", ".join(found)


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
            _time(row),
            _number(row.requests),
            "-" if row.half_width is None else f"±{100 * row.half_width:.0f} %",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    runs = sum(row.runs for row in rows)
    total = f"{sum(row.runs * row.seconds for row in rows):.4g} s"
    if any(math.isnan(row.per_capacity) for row in rows):
        total += " and more"
    if any(row.per_capacity > 0 for row in rows):
        total += " and what is over C"
        lines.append("C: the capacity for the point's requests, per second, which the study measures first")
    for name in dict.fromkeys(row.experiment for row in rows if row.limits):
        limits = "; ".join(dict.fromkeys(row.limits for row in rows if row.experiment == name))
        lines.append(
            f"{name}: {limits}. Requests are those offered; how many are answered the plan does not know, nor ±"
        )
    if any(row.half_width is not None for row in rows):
        lines.append(
            "±: how sharp the mean time in system would be (half of its 95 % interval) if the system were the M/M/1 queue"
        )
    lines.append(
        f"{_plural(len(rows), 'point')}, {_plural(runs, 'run')}, warm-up and measurement {total}; {_calibration(study)}"
    )
    return "\n".join(lines)


def _time(row: PlanRow) -> str:
    if math.isnan(row.per_capacity):
        return "-"
    if not row.per_capacity:
        return _number(row.seconds)
    return f"{row.seconds:.4g} + {row.per_capacity:.4g}/C" if row.seconds else f"{row.per_capacity:.4g}/C"


def _calibration(study: Study) -> str:
    """What comes on top of the runs, as far as that is known."""
    mixes = len(measured_mixes(study, study.runs))
    if not mixes:
        return "each run then waits for its last requests"
    seconds = 2 * mixes * (study.calibration.warmup + study.calibration.seconds)
    capacities = "1 capacity" if mixes == 1 else f"{mixes} capacities"
    return f"{seconds:.4g} s for {capacities} before and after; step times, engine starts and each run's last requests on top"


def measured_mixes(study: Study, runs: Sequence[RunSpec]) -> set[str]:
    """The keys of the request mixes whose capacity ``runs`` need measured: those of engines, with a load."""
    loaded = [run for run in runs if run.target is None and getattr(run.arrivals, "load", None) is not None]
    return {study.capacity_run(run).mix_key for run in loaded}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
