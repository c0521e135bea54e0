"""Continuous batching as load-dependent processor sharing: all in the batch get a token a step, more of them a slower one.

Of E2E only: the first token is not shared (``first_token``). ``ps`` wants that nobody waits for a seat, ``limited-ps``
allows it: then a birth-death chain whose speed stops growing at the seats. The turns of sessions wait for answers, which a
shared server forgives (product form): there the starts of sessions have to be Poisson.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, refuse, seed_of
from analysis.predictions.shared_queue import SharedSpeed, Visits, share, shared_speed, sizes_of
from analysis.queues import StateDependent, UnstableQueueError
from analysis.runs import Run
from analysis.study import seats_of

Array = NDArray[np.float64]

QUANTITIES = (("mean E2E", "s"), ("E2E per output token", "s"))
LIMITED = (("mean E2E", "s"), ("mean wait for a seat", "s"))
LEAST_DRAWS, MOST_DRAWS, DRAWN = 30, 400, 100_000  # simulated runs, and requests in all of them


def ps(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean E2E, and how it grows with a request's output, under load-dependent processor sharing."""
    if (refused := not_shared(run, model)) or model is None:
        return refuse("ps", QUANTITIES, refused)
    speed = shared_speed(run, model)
    lam, number = _rate(run), len(run.measured)
    tested = (*_checks(run), checks.nobody_waits(run.measured))
    # Prompts are charged in the mean; the line through 0 stands only where they hardly count.
    checked = (tested, (*tested, checks.small_prefill(speed.prefill_share(_typical_batch(run, speed.seats)))))
    try:
        queue = StateDependent(lam, lambda n: speed(n) / speed.mean_output)
    except UnstableQueueError:
        return refuse("ps", QUANTITIES, "unstable", tested, number)
    requests = run.measured
    sojourn = (requests["finished_s"] - requests["intended_s"]).to_numpy(dtype=float)
    sizes = requests["output_tokens"].to_numpy(dtype=float)
    drawn = _draws(run, speed, lam, None)
    means = [float(visits.sojourn.mean()) for visits, _ in drawn]
    slopes = [_slope(size, visits.sojourn) for visits, size in drawn]
    found = []
    statements = (queue.W, queue.W / speed.mean_output), (float(sojourn.mean()), _slope(sizes, sojourn))
    for (name, unit), held, predicted, measured, draws in zip(
        QUANTITIES, checked, *statements, (means, slopes), strict=True
    ):
        band = band_of(draws, measured, predicted)
        found.append(Prediction("ps", name, unit, held, predicted, measured, number, band, note=_note(speed, lam)))
    return found


def limited_ps(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean E2E and mean wait for a seat when the seats fill up: ``StateDependent`` with ``seats``."""
    if (refused := not_shared(run, model)) or model is None:
        return refuse("limited-ps", LIMITED, refused)
    speed = shared_speed(run, model)
    lam, number = _rate(run), len(run.measured)
    tested = (*_checks(run), checks.first_come(run))
    try:
        queue = StateDependent(lam, lambda n: speed(n) / speed.mean_output, seats=speed.seats)
    except UnstableQueueError:
        return refuse("limited-ps", LIMITED, "unstable", tested, number)
    requests = run.measured
    sojourn = (requests["finished_s"] - requests["intended_s"]).to_numpy(dtype=float)
    # Who waits only for the step in progress has a seat already: that part is no wait in this model.
    held_back = requests["wait_reason"].isin(["seats", "kv"]).to_numpy(dtype=bool)
    wait = np.where(held_back, requests["wait_first"].to_numpy(dtype=float), 0.0)
    drawn = _draws(run, speed, lam, speed.seats)
    draws = ([float(v.sojourn.mean()) for v, _ in drawn], [float(v.wait.mean()) for v, _ in drawn])
    found = []
    for (name, unit), predicted, values, simulated in zip(
        LIMITED, (queue.W, queue.Wq), (sojourn, wait), draws, strict=True
    ):
        measured = float(values.mean())
        band = band_of(simulated, measured, predicted)
        row = Prediction("limited-ps", name, unit, tested, predicted, measured, number, band, note=_note(speed, lam))
        found.append(row)
    return found


def not_shared(run: Run, model: StepTimeModel | None, seats: bool = True) -> str | None:
    """Why a model of a shared batch does not apply to the run; None where it does."""
    if checks.policy_of(run) == "static_batch":
        return "not applicable: under static_batch nobody joins those who run"
    return too_few_or_unknown(run, model, seats)


def too_few_or_unknown(run: Run, model: StepTimeModel | None, seats: bool = True) -> str | None:
    """Why no model of a batch applies to the run, whatever its policy; None where one may."""
    if model is None:
        return "not applicable: no step grid of this execution was calibrated"
    if seats and seats_of(run) == 1:
        return "not applicable: one seat shares nothing"
    ended = run.measured["finish_reason"].isin(["stop", "length"]).to_numpy(dtype=bool)
    return "too short" if ended.sum() < 30 or not ended.all() else None


def _rate(run: Run) -> float:
    start, end = run.window
    rate = run.meta.get("rate")
    return float(rate) if rate else len(run.measured) / (end - start)


def _note(speed: SharedSpeed, lam: float) -> str:
    return f"phi(1) = {speed(1):.3g}, phi({speed.seats}) = {speed(speed.seats):.3g} tokens/s, lambda = {lam:.3g}/s"


def _checks(run: Run) -> tuple[Check, ...]:
    return (checks.poisson_of(run, sessions=True), checks.patient(run.requests))


def _typical_batch(run: Run, seats: int) -> int:
    """Mean number in system by Little's law, as a whole number of seats."""
    start, end = run.window
    inside = float((run.measured["finished_s"] - run.measured["intended_s"]).sum()) / (end - start)
    return max(1, min(seats, round(inside)))


def _draws(run: Run, speed: SharedSpeed, lam: float, seats: int | None) -> list[tuple[Visits, Array]]:
    """Simulated runs of as many requests: the visits of the measured ones, in order of arrival, and their sizes."""
    rng = np.random.default_rng(seed_of(run))
    skip, number = int(np.count_nonzero(run.requests["phase"] == "warmup")), len(run.measured)
    # Whoever comes behind the last measured request slows it down too, as in the run's cooldown.
    whole = skip + number + max(30, number // 4)
    sessions = _Sessions.of(run)
    pool = sizes_of(run)
    found = []
    for _ in range(int(np.clip(DRAWN / (skip + number), LEAST_DRAWS, MOST_DRAWS))):
        if sessions is None:
            sizes = rng.choice(pool, whole)
            visits = share(np.cumsum(rng.exponential(1 / lam, whole)), sizes, speed, seats)
        else:
            visits, sizes = sessions.draw(rng, lam, whole, speed, seats)
        order = np.argsort(visits.arrived, kind="stable")[skip : skip + number]
        found.append((Visits(visits.arrived[order], visits.admitted[order], visits.left[order]), sizes[order]))
    return found


@dataclass(frozen=True)
class _Sessions:
    """The sessions of a run as they were: sizes of their turns, and the thinking before each further turn (s)."""

    sizes: tuple[Array, ...]
    think: tuple[Array, ...]

    @classmethod
    def of(cls, run: Run) -> _Sessions | None:
        if checks.process_of(run) != "sessions":
            return None
        rows = run.requests.assign(size=sizes_of(run)).sort_values(["session_id", "intended_s"], kind="stable")
        sizes, think = [], []
        for _, turns in rows.groupby("session_id", sort=False):
            sizes.append(turns["size"].to_numpy(dtype=float))
            pauses = turns["intended_s"].to_numpy(dtype=float)[1:] - turns["finished_s"].to_numpy(dtype=float)[:-1]
            think.append(np.append(np.maximum(np.nan_to_num(pauses), 0.0), 0.0))
        return cls(tuple(sizes), tuple(think))

    def draw(
        self, rng: np.random.Generator, lam: float, turns: int, speed: SharedSpeed, seats: int | None
    ) -> tuple[Visits, Array]:
        """At least ``turns`` turns at ``lam`` turns a second: whole sessions drawn anew, their starts Poisson."""
        mean_turns = sum(part.size for part in self.sizes) / len(self.sizes)
        which: list[int] = []
        while sum(self.sizes[i].size for i in which) < turns:
            which += rng.integers(len(self.sizes), size=max(1, round(turns / mean_turns))).tolist()
        sizes = np.concatenate([self.sizes[i] for i in which])
        think = np.concatenate([self.think[i] for i in which])
        ends = np.cumsum([self.sizes[i].size for i in which])
        follows = np.arange(1, sizes.size + 1)
        follows[ends - 1] = -1
        arrivals = np.full(sizes.size, np.nan)
        arrivals[np.concatenate([[0], ends[:-1]])] = np.cumsum(rng.exponential(mean_turns / lam, len(which)))
        return share(arrivals, sizes, speed, seats, follows, think), sizes


def _slope(x: Array, y: Array) -> float:
    """Of the line through 0, by least squares."""
    return float(np.sum(x * y) / np.sum(x * x))
