"""One seat under arrivals that are not Poisson: two-moment formulas for renewal gaps, MMPP/PH/1 for bursts that last.

Held against the band of runs of the same length whose gaps come from the fitted process: drawn anew one by one (renewal), or
from the fitted two-state MMPP.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from analysis.arrivals import MMPP2, fit_mmpp2
from analysis.intervals import TooShort
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, refuse, seed_of
from analysis.predictions.one_seat import Served, not_one_seat, order_of_service, served
from analysis.queues import GG1, MMPP1, UnstableQueueError
from analysis.queues.service import two_moment
from analysis.runs import Run
from analysis.stability import squared_cv

Array = NDArray[np.float64]
Gaps = Callable[[np.random.Generator, int], Array]

RENEWAL_QUANTITIES = (("mean wait (KLB)", "s"), ("mean wait (Marchal)", "s"))
BURSTS = (("mean wait", "s"),)
DRAWS = 1000
MODULATED = "arrivals modulated by two states"
LEAST_CV2 = 0.01  # below, service is as good as constant and no small phase-type holds it


def gg1(run: Run) -> list[Prediction]:
    """Krämer-Langenbach-Belz's and Marchal's mean wait from two moments of gaps and services; Kingman's bound in the note."""
    if refused := not_one_seat(run):
        return refuse("gg1", RENEWAL_QUANTITIES, refused)
    seen, gaps = served(run), _gaps(run)
    number = int(seen.measured.sum())
    if number < checks.FEWEST or gaps.size < checks.FEWEST:
        return refuse("gg1", RENEWAL_QUANTITIES, "too short", n=number)
    tested = (
        checks.renewal(run),
        checks.independent_services(seen.service[1:], np.diff(seen.received)),
        *order_of_service(seen),
        checks.patient(run.requests),
    )
    lam, ES = 1.0 / float(gaps.mean()), float(seen.service.mean())
    ca2, cs2 = squared_cv(gaps), squared_cv(seen.service)
    try:
        predicted = [GG1(lam, ES, ca2, cs2, method).Wq for method in ("klb", "marchal")]
    except UnstableQueueError:
        return refuse("gg1", RENEWAL_QUANTITIES, "unstable", tested, number)
    draws = _waits(run, seen, lambda rng, n: rng.choice(gaps, n))
    bound = GG1(lam, ES, ca2, cs2, "kingman").Wq
    note = f"rho = {lam * ES:.2f}, ca2 = {ca2:.2f}, cs2 = {cs2:.2f}; Kingman's bound {1e3 * bound:.3g} ms"
    measured = float(seen.wait[seen.measured].mean())
    return [
        Prediction("gg1", name, unit, tested, value, measured, number, band_of(draws, measured, value), note=note)
        for (name, unit), value in zip(RENEWAL_QUANTITIES, predicted, strict=True)
    ]


def mmpp1(run: Run) -> list[Prediction]:
    """MMPP/PH/1: a two-state MMPP fitted to the arrivals, phase-type service with the measured two moments."""
    if refused := not_one_seat(run):
        return refuse("mmpp1", BURSTS, refused)
    seen = served(run)
    number = int(seen.measured.sum())
    start, end = run.window
    intended = np.sort(run.requests["intended_s"].to_numpy(dtype=float))
    try:
        fitted = fit_mmpp2(intended[(intended >= start) & (intended < end)])
    except TooShort:
        return refuse("mmpp1", BURSTS, "too short", n=number)
    except ValueError as reason:
        return refuse("mmpp1", BURSTS, f"not applicable: {reason}", n=number)
    finding = f"log-likelihood {fitted.log_likelihood - fitted.poisson_log_likelihood:+.1f} over a Poisson process"
    tested = (
        Check(MODULATED, finding, holds=fitted.better_than_poisson and checks.process_of(run) != "closed"),
        checks.independent_services(seen.service[1:], np.diff(seen.received)),
        *order_of_service(seen),
        checks.patient(run.requests),
    )
    service = two_moment(float(seen.service.mean()), max(squared_cv(seen.service), LEAST_CV2))
    (r1, r2), leave = fitted.rates, fitted.leave
    try:
        queue = MMPP1([r1, r2], [[-leave[0], leave[0]], [leave[1], -leave[1]]], service)
    except UnstableQueueError:
        return refuse("mmpp1", BURSTS, "unstable", tested, number)
    draws = _waits(run, seen, lambda rng, n: mmpp_gaps(fitted, rng, n))
    measured = float(seen.wait[seen.measured].mean())
    note = (
        f"rates {r1:.3g} and {r2:.3g}/s, mean stays {1 / leave[0]:.3g} and {1 / leave[1]:.3g} s, rho = {queue.rho:.2f}"
    )
    band = band_of(draws, measured, queue.Wq)
    return [Prediction("mmpp1", *BURSTS[0], tested, queue.Wq, measured, number, band, note=note)]


def mmpp_gaps(process: MMPP2, rng: np.random.Generator, n: int) -> Array:
    """n gaps (s) of a two-state MMPP started in its long-run law: Poisson arrivals within alternating exponential stays."""
    r1, r2 = process.leave
    state = int(rng.random() < r1 / (r1 + r2))
    pieces, have, t = [], 0, 0.0
    while have <= n:
        stay = float(rng.exponential(1.0 / process.leave[state]))
        inside = np.sort(rng.random(rng.poisson(process.rates[state] * stay))) * stay + t
        pieces.append(inside)
        have, t, state = have + inside.size, t + stay, 1 - state
    return np.diff(np.concatenate(pieces)[: n + 1])


def _gaps(run: Run) -> Array:
    start, end = run.window
    intended = np.sort(run.requests["intended_s"].to_numpy(dtype=float))
    return np.diff(intended[(intended >= start) & (intended < end)])


def _waits(run: Run, seen: Served, gaps: Gaps) -> list[float]:
    """Mean wait (s) of the measured customers in simulated runs of this length from empty (Lindley, service drawn anew)."""
    rng = np.random.default_rng(seed_of(run))
    skip, number = int(np.count_nonzero(run.requests["phase"] == "warmup")), int(seen.measured.sum())
    found = []
    for _ in range(DRAWS):
        service = rng.choice(seen.service, skip + number)
        steps = np.concatenate([[0.0], service[:-1] - gaps(rng, skip + number)[:-1]])
        walk = np.cumsum(steps)
        waits = walk - np.minimum.accumulate(walk)
        found.append(float(waits[skip:].mean()))
    return found
