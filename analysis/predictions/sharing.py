"""Continuous batching as load-dependent processor sharing: all in the batch get a token a step, more of them a slower one.

Total speed with n in system is phi(n) = n / step(n) tokens a second, step(n) from the calibration's fit. Prompts are
charged to everybody: at the mean rate of completions a step carries n / E[output] prefills. Of E2E only: the first token
is not shared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of
from analysis.queues import StateDependent, UnstableQueueError
from analysis.runs import Run
from analysis.study import seats_of
from engine.executors.base import BatchShape

Array = NDArray[np.float64]

QUANTITIES = (("mean E2E", "s"), ("E2E per output token", "s"))
LEAST_DRAWS, MOST_DRAWS, DRAWN = 30, 400, 100_000  # simulated runs, and requests in all of them


@dataclass(frozen=True)
class SharedSpeed:
    """Tokens a second with n in system, for the lengths of one run; ``prefill_share`` of its work is prefill."""

    model: StepTimeModel
    seats: int
    mean_output: float
    context: float  # mean context of a decode row
    prompt: float  # mean prompt tokens to compute
    attention: float  # mean of prompt^2 / 2

    def __call__(self, n: int) -> float:
        """phi(n), n counted up to the seats."""
        rows = min(n, self.seats)
        return rows / (self.decode_step(rows) + rows / self.mean_output * self.prefill(rows))

    def decode_step(self, rows: int) -> float:
        """Seconds of a step of ``rows`` decodes, with the gap behind it."""
        shape = BatchShape(0, rows, 0, rows, round(rows * self.context), 0.0, rows)
        return self.model(shape) * self.model.time_factor + self.model.gap_s

    def prefill(self, rows: int) -> float:
        """Seconds that one prompt adds to a step in place of a decode."""
        others = rows - 1
        kv = round(others * self.context)
        mixed = BatchShape(1, others, round(self.prompt), others, kv, self.attention, rows)
        return max(0.0, self.model(mixed) * self.model.time_factor + self.model.gap_s - self.decode_step(rows))

    def prefill_share(self, rows: int) -> float:
        """The share of a request's work that is its prompt, with ``rows`` in the batch."""
        prefill = self.prefill(rows)
        return prefill / (prefill + self.mean_output * self.decode_step(rows) / rows)


def shared_speed(run: Run, model: StepTimeModel) -> SharedSpeed:
    """phi for the lengths that ``run`` really had."""
    done = run.requests[run.requests["finish_reason"].isin(["stop", "length"])]
    output = done["output_tokens"].to_numpy(dtype=float)
    prompt = done["prompt_tokens"].to_numpy(dtype=float) - np.nan_to_num(done["cached_tokens"].to_numpy(dtype=float))
    whole = done["prompt_tokens"].to_numpy(dtype=float)
    return SharedSpeed(
        model=model,
        seats=seats_of(run) or 1,
        mean_output=float(output.mean()),
        context=float(np.sum(output * (whole + output / 2)) / output.sum()),
        prompt=float(prompt.mean()),
        attention=float(np.mean(prompt * (whole - prompt / 2))),
    )


def shared_sojourns(arrivals: Array, sizes: Array, speed: Callable[[int], float]) -> Array:
    """Sojourns (s) when all in system share ``speed(n)`` equally; arrivals ascending, sizes in the unit of the speed.

    Everyone advances alike, so the next to leave is the one with the smallest size left: a heap over the common progress.
    """
    leave = np.empty(arrivals.size)
    inside: list[tuple[float, int]] = []
    speeds = [0.0]
    t = progress = 0.0
    i = 0
    times, work = arrivals.tolist(), sizes.tolist()
    while i < len(times) or inside:
        n = len(inside)
        if n == len(speeds):
            speeds.append(speed(n) / n)
        ends = t + (inside[0][0] - progress) / speeds[n] if n else np.inf
        if i < len(times) and times[i] <= ends:
            progress += (times[i] - t) * speeds[n]
            t = times[i]
            heapq.heappush(inside, (progress + work[i], i))
            i += 1
        else:
            progress, who = heapq.heappop(inside)
            t = leave[who] = ends
    return leave - arrivals


def ps(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean E2E, and how it grows with a request's output, under load-dependent processor sharing."""
    refused = None
    if model is None:
        refused = "not applicable: no step grid of this execution was calibrated"
    elif seats_of(run) == 1:
        refused = "not applicable: one seat shares nothing"
    ended = run.measured["finish_reason"].isin(["stop", "length"]).to_numpy(dtype=bool)
    if refused is None and (ended.sum() < 30 or not ended.all()):
        refused = "too short"
    if refused is not None or model is None:
        return [Prediction("ps", name, unit, refused=refused) for name, unit in QUANTITIES]
    speed = shared_speed(run, model)
    start, end = run.window
    rate = run.meta.get("rate")
    number = len(run.measured)
    lam = float(rate) if rate else number / (end - start)
    tested = _checks(run)
    # Prompts are charged in the mean; the line through 0 stands only where they hardly count.
    checked = (tested, (*tested, checks.small_prefill(speed.prefill_share(_typical_batch(run, speed.seats)))))
    try:
        queue = StateDependent(lam, lambda n: speed(n) / speed.mean_output)
    except UnstableQueueError:
        return [Prediction("ps", name, unit, checks=tested, n=number, refused="unstable") for name, unit in QUANTITIES]
    requests = run.measured
    sojourn = (requests["finished_s"] - requests["intended_s"]).to_numpy(dtype=float)
    sizes = requests["output_tokens"].to_numpy(dtype=float)
    skip = int(np.count_nonzero(run.requests["phase"] == "warmup"))
    drawn = _draws(run, speed, lam, skip, number)
    note = f"phi(1) = {speed(1):.3g}, phi({speed.seats}) = {speed(speed.seats):.3g} tokens/s, lambda = {lam:.3g}/s"
    found = []
    statements = (queue.W, queue.W / speed.mean_output), (float(sojourn.mean()), _slope(sizes, sojourn))
    for (name, unit), held, predicted, measured, draws in zip(QUANTITIES, checked, *statements, drawn, strict=True):
        band = band_of(draws, measured, predicted)
        found.append(Prediction("ps", name, unit, held, predicted, measured, number, band, note=note))
    return found


def _checks(run: Run) -> tuple[Check, ...]:
    start, end = run.window
    return (
        checks.poisson(run.requests["intended_s"].to_numpy(dtype=float), start, end),
        checks.nobody_waits(run.measured),
        checks.patient(run.requests),
    )


def _typical_batch(run: Run, seats: int) -> int:
    """Mean number in system by Little's law, as a whole number of seats."""
    start, end = run.window
    inside = float((run.measured["finished_s"] - run.measured["intended_s"]).sum()) / (end - start)
    return max(1, min(seats, round(inside)))


def _draws(run: Run, speed: SharedSpeed, lam: float, skip: int, number: int) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(0)
    pool = run.requests["max_tokens"].to_numpy(dtype=float)
    ended = run.requests["finish_reason"].isin(["stop", "length"]).to_numpy(dtype=bool)
    pool = np.where(ended, run.requests["output_tokens"].to_numpy(dtype=float), pool)
    means, slopes = [], []
    for _ in range(int(np.clip(DRAWN / (skip + number), LEAST_DRAWS, MOST_DRAWS))):
        # Whoever comes behind the last measured request slows it down too, as in the run's cooldown.
        whole = skip + number + max(30, number // 4)
        sizes = rng.choice(pool, whole)
        sojourn = shared_sojourns(np.cumsum(rng.exponential(1 / lam, whole)), sizes, speed)
        kept = slice(skip, skip + number)
        means.append(float(sojourn[kept].mean()))
        slopes.append(_slope(sizes[kept], sojourn[kept]))
    return means, slopes


def _slope(x: Array, y: Array) -> float:
    """Of the line through 0, by least squares."""
    return float(np.sum(x * y) / np.sum(x * x))
