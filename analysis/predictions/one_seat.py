"""One seat, first come first served: Lindley's recursion request by request, and M/G/1 for the mean.

The service time of a request is the time of the steps in which it ran plus the mean gap between steps for each, and is
never read off the ends of waits: a service time that contains what it is to explain would agree with anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, seed_of
from analysis.queues import MG1, UnstableQueueError
from analysis.queues.base import FCFS
from analysis.runs import Run
from analysis.study import seats_of

Array = NDArray[np.float64]

PATH_TOLERANCE = 0.02  # median relative error of the sojourns
MOST_DRAWS, LEAST_DRAWS, DRAWN = 20_000, 400, 20_000_000  # simulated runs, and customers in all of them
SHARED_STEPS = "one request in each step"


@dataclass(frozen=True)
class Served:
    """The requests of a one-seat run in the order of service. Times in seconds; ``gap`` is the mean time between steps."""

    intended: Array
    received: Array
    scheduled: Array
    done: Array
    service: Array
    measured: NDArray[np.bool_]
    gap: float
    shared_steps: int  # steps that computed more than one request

    @property
    def wait(self) -> Array:
        """From receipt to the start of the first step."""
        return self.scheduled - self.received

    @property
    def sojourn(self) -> Array:
        """From receipt to the end of the last step."""
        return self.done - self.received


def served(run: Run) -> Served:
    """What a one-seat run says about its requests; those that did not end normally are left out (they come last).

    Raises:
        ValueError: the run recorded no steps, or not what each of them computed.
    """
    for name in ("steps", "batch"):
        if not run.recorded(name):
            raise ValueError(f"service times come from the table {name!r}, which this run has not recorded")
    steps = run.steps.set_index("step")
    length = (steps["end_s"] - steps["start_s"]).rename("length")
    batch = run.batch.join(length, on="step")
    ran = batch.groupby("request_id")["length"].agg(["sum", "count"])
    gap = gap_between_steps(run)
    done = run.requests[run.requests["finish_reason"].isin(["stop", "length"])]
    done = done.sort_values("scheduled_s", kind="stable").join(ran, on="request_id")
    done = done[done["sum"].notna()]
    return Served(
        intended=done["intended_s"].to_numpy(dtype=float),
        received=done["received_s"].to_numpy(dtype=float),
        scheduled=done["scheduled_s"].to_numpy(dtype=float),
        done=done["done_s"].to_numpy(dtype=float),
        service=(done["sum"] + gap * done["count"]).to_numpy(dtype=float),
        measured=(done["phase"].isna() | (done["phase"] == "measure")).to_numpy(dtype=bool),
        gap=gap,
        shared_steps=int((run.batch.groupby("step").size() > 1).sum()),
    )


def gap_between_steps(run: Run) -> float:
    """Mean seconds from the end of a step to the start of the next, where the engine was not idle in between."""
    steps = run.steps.sort_values("step", kind="stable")
    start, end = (steps[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    idle = np.nan_to_num(steps["idle_s"].to_numpy(dtype=float))
    gaps = (start[1:] - end[:-1])[idle[1:] == 0]
    return float(gaps.mean()) if gaps.size else 0.0


def lindley_path(received: Array, service: Array, gap: float = 0.0) -> Array:
    """Sojourns by Lindley's recursion, in the order of service: start = max(receipt, previous end), end = start + service.

    ``gap`` is the part of each service time that comes after the answer (the gap behind the last step).
    """
    ends = np.empty_like(received)
    free = -np.inf
    for i, (arrival, time) in enumerate(zip(received.tolist(), service.tolist(), strict=True)):
        free = max(arrival, free) + time
        ends[i] = free
    return ends - gap - received


def mg1_waits(service: Array, lam: float, skip: int, n: int, draws: int, seed: int = 0) -> tuple[Array, Array]:
    """Mean wait and mean sojourn (s) of ``n`` customers after ``skip`` others, in each of ``draws`` M/G/1 runs from empty.

    Service times are drawn with replacement from the measured ones; all runs advance together (Lindley).
    """
    rng = np.random.default_rng(seed)
    wait, waits, services = np.zeros(draws), np.zeros(draws), np.zeros(draws)
    for customer in range(skip + n):
        drawn = rng.choice(service, draws)
        if customer >= skip:
            waits += wait
            services += drawn
        wait = np.maximum(0.0, wait + drawn - rng.exponential(1 / lam, draws))
    return waits / n, (waits + services) / n


def draws_for(customers: int) -> int:
    """How many simulated runs of so many customers make a band."""
    return int(np.clip(DRAWN / customers, LEAST_DRAWS, MOST_DRAWS))


def lindley(run: Run) -> list[Prediction]:
    """The measured arrivals and service times through Lindley's recursion, request by request."""
    quantity, unit = "each sojourn", "s"
    if refused := not_one_seat(run):
        return [Prediction("lindley", quantity, unit, refused=refused)]
    seen = served(run)
    if not seen.measured.any():
        return [Prediction("lindley", quantity, unit, refused="too short")]
    path = lindley_path(seen.received, seen.service, seen.gap)[seen.measured]
    true = seen.sojourn[seen.measured]
    scatter = float(np.median(np.abs(path - true) / true))
    return [
        Prediction(
            "lindley",
            quantity,
            unit,
            checks=(*order_of_service(seen), checks.patient(run.requests)),
            predicted=float(path.mean()),
            measured=float(true.mean()),
            n=int(true.size),
            tolerance=PATH_TOLERANCE,
            scatter=scatter,
            note=f"median error of a request {scatter:.2%}, {PATH_TOLERANCE:.0%} allowed",
        )
    ]


def mg1(run: Run) -> list[Prediction]:
    """Pollaczek and Khinchine's mean wait and sojourn, with the band of runs of this length from an empty start."""
    names = ("mean wait", "mean sojourn")
    if refused := not_one_seat(run):
        return [Prediction("mg1", name, "s", refused=refused) for name in names]
    seen = served(run)
    number = int(seen.measured.sum())
    if number < 10:
        return [Prediction("mg1", name, "s", refused="too short", n=number) for name in names]
    lam = rate_of(run)
    tested = (
        checks.poisson_of(run, sessions=False),
        checks.independent_services(seen.service[1:], np.diff(seen.received)),
        *order_of_service(seen),
        checks.patient(run.requests),
    )
    try:
        queue = MG1(lam, seen.service)
    except UnstableQueueError:
        return [Prediction("mg1", name, "s", refused="unstable", checks=tested, n=number) for name in names]
    skip = int(np.count_nonzero(run.requests["phase"] == "warmup"))
    waits, sojourns = mg1_waits(seen.service, lam, skip, number, draws_for(skip + number), seed_of(run))
    rows = zip(names, (queue.Wq, queue.W), (seen.wait, seen.sojourn + seen.gap), (waits, sojourns), strict=True)
    found = []
    for name, predicted, values, simulated in rows:
        measured = float(values[seen.measured].mean())
        found.append(
            Prediction(
                "mg1",
                name,
                "s",
                checks=tested,
                predicted=predicted,
                measured=measured,
                n=number,
                band=band_of(simulated, measured, predicted),
                note=f"rho = {queue.rho:.2f}, lambda = {lam:.3g}/s, gap between steps {1e3 * seen.gap:.2f} ms",
            )
        )
    return found


def rate_of(run: Run) -> float:
    """Arrivals a second: as planned for a Poisson process, else as counted in the measured window."""
    start, end = run.window
    planned = (run.meta.get("spec") or {}).get("arrivals", {}).get("process") == "poisson"
    return float(run.meta["rate"]) if planned and run.meta.get("rate") else len(run.measured) / (end - start)


def not_one_seat(run: Run) -> str | None:
    seats = seats_of(run)
    if seats is not None and seats != 1:
        return f"not applicable: the engine has {seats} seats, this is a model of one"
    if not run.recorded("steps") or not run.recorded("batch"):
        return "not applicable: the engine's steps were not recorded"
    return None


def order_of_service(seen: Served) -> tuple[Check, Check]:
    """First come first served, one at a time."""
    return _first_come(seen), _alone(seen)


def _first_come(seen: Served) -> Check:
    overtaken = int(np.count_nonzero(np.diff(seen.received) < 0))
    return Check(FCFS, f"{overtaken} served before someone who came earlier", holds=overtaken == 0)


def _alone(seen: Served) -> Check:
    return Check(SHARED_STEPS, f"{seen.shared_steps} steps computed several", holds=seen.shared_steps == 0)
