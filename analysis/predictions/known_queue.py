"""A queue with a textbook's answer in place of the engine: what is tested is the instrument.

Waits are the client's: from the intended arrival to its stamp of the end, less the service time. A generator that sends late,
bunches arrivals or forgets who waited shows here, against closed forms and runs of the same length from an empty queue.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.predictions import checks
from analysis.predictions.base import Prediction, band_of, refuse, seed_of
from analysis.predictions.one_seat import rate_of
from analysis.queues import MD1, MMc, UnstableQueueError
from analysis.queues.base import OpenQueue
from analysis.runs import Run
from analysis.study import known_queue_of

Array = NDArray[np.float64]

QUANTITIES = (("mean wait", "s"), ("mean sojourn", "s"))
MOST_DRAWS, LEAST_DRAWS, DRAWN = 4000, 400, 4_000_000  # simulated runs, and customers in all of them


def mm1(run: Run) -> list[Prediction]:
    """M/M/1 against a queue with one exponential server."""
    return _known(run, "mm1", "exponential", servers=1)


def md1(run: Run) -> list[Prediction]:
    """M/D/1 against a queue with one server and fixed service times."""
    return _known(run, "md1", "fixed", servers=1)


def mmc(run: Run) -> list[Prediction]:
    """M/M/c against a queue with exponential servers (Erlang's C formula)."""
    return _known(run, "mmc", "exponential", servers=None)


def simulated_means(
    mean_s: float, c: int, exponential: bool, lam: float, skip: int, n: int, draws: int, seed: int
) -> tuple[Array, Array]:
    """Mean wait and mean sojourn (s) of ``n`` customers after ``skip`` others in each of ``draws`` runs from empty.

    Kiefer and Wolfowitz' recursion on the work of each server; all runs advance together.
    """
    rng = np.random.default_rng(seed)
    work = np.zeros((draws, c))  # left on each server, least first
    waits, services = np.zeros(draws), np.zeros(draws)
    for customer in range(skip + n):
        drawn = rng.exponential(mean_s, draws) if exponential else np.full(draws, mean_s)
        if customer >= skip:
            waits += work[:, 0]
            services += drawn
        work[:, 0] += drawn
        if c > 1:
            work.sort(axis=1)
        work -= rng.exponential(1 / lam, draws)[:, None]
        np.maximum(work, 0.0, out=work)
    return waits / n, (waits + services) / n


def _known(run: Run, name: str, law: str, servers: int | None) -> list[Prediction]:
    target = known_queue_of(run)
    if target is None:
        return refuse(name, QUANTITIES, "not applicable: the run's target is an engine, not a known queue")
    service, c = target["service"], int(target["servers"])
    if service["dist"] != law or servers not in (None, c):
        found = f"{c} server{'s' if c > 1 else ''} with {service['dist']} service times"
        return refuse(name, QUANTITIES, f"not applicable: the queue has {found}")
    tested = (checks.poisson_of(run, sessions=False), checks.patient(run.requests))
    rows = run.measured[run.measured["finish_reason"].isin(["stop", "length"])]
    if len(rows) < 10:
        return refuse(name, QUANTITIES, "too short", tested, len(rows))
    mean_s, lam = float(service["value" if law == "fixed" else "mean"]), rate_of(run)
    try:
        queue: OpenQueue = MD1(lam, mean_s) if law == "fixed" else MMc(lam, 1 / mean_s, c)
    except UnstableQueueError:
        return refuse(name, QUANTITIES, "unstable", tested, len(rows))
    skip = int(np.count_nonzero(run.requests["phase"] == "warmup"))
    draws = int(np.clip(DRAWN / (skip + len(rows)), LEAST_DRAWS, MOST_DRAWS))
    drawn = simulated_means(mean_s, c, law != "fixed", lam, skip, len(rows), draws, seed_of(run))
    sojourn = (rows["finished_s"] - rows["intended_s"]).to_numpy(dtype=float)
    wait = sojourn - (rows["done_s"] - rows["scheduled_s"]).to_numpy(dtype=float)
    return [
        Prediction(
            name,
            quantity,
            unit,
            checks=tested,
            predicted=predicted,
            measured=float(values.mean()),
            n=len(rows),
            band=band_of(means, float(values.mean()), predicted),
            note=f"rho = {lam * mean_s / c:.2f}, lambda = {lam:.4g}/s, {c} server{'s' if c > 1 else ''}",
        )
        for (quantity, unit), predicted, values, means in zip(
            QUANTITIES, (queue.Wq, queue.W), (wait, sojourn), drawn, strict=True
        )
    ]
