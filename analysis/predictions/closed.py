"""Closed loops: clients who wait for their answer, think and ask again; and what is completed when somebody always waits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.capacity import capacity
from analysis.fit.step_time import StepTimeModel
from analysis.intervals import TooShort
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, normal_band, refuse, seed_of
from analysis.predictions.shared_queue import SharedSpeed, share, shared_speed, sizes_of
from analysis.predictions.sharing import not_shared
from analysis.predictions.simulated import LEAST_SPEED_DOUBT
from analysis.queues import ClosedStation
from analysis.queues.engine import EngineLimits, budget_limit, seat_limit
from analysis.runs import Run
from engine.executors.base import BatchShape

Array = NDArray[np.float64]

QUANTITIES = (("mean E2E", "s"), ("completions", "1/s"))
SATURATION = (("completions when saturated", "1/s"),)
DRAWS = 200
SAME_CLIENTS = "a fixed number of clients, each with one request at a time"
LEAST_THINK_S = 1e-6  # thinking that is none: the chain wants a time above 0


def closed(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean E2E and completions a second of a closed loop, as one station of rate phi(n) / E[output] and thinking clients.

    ``ClosedStation`` for the values; their band from simulated loops with the run's own thinks and lengths, drawn anew.
    """
    refused = not_shared(run, model, seats=False)
    if checks.process_of(run) != "closed":
        refused = "not applicable: arrivals do not wait for answers, this is a model of a closed loop"
    if refused or model is None:
        return refuse("closed", QUANTITIES, refused)
    speed = shared_speed(run, model)
    rows = run.requests.sort_values(["session_id", "intended_s"], kind="stable")
    clients = int(rows["session_id"].nunique())
    think = thinks(run)
    mean_think = max(float(think.mean()) if think.size else 0.0, LEAST_THINK_S)
    station = ClosedStation(clients, mean_think, lambda n: speed(n) / speed.mean_output, seats=speed.seats)
    tested = (_one_each(run), checks.patient(run.requests))
    start, end = run.window
    measured = run.measured
    ended = run.requests["finished_s"].to_numpy(dtype=float)
    true = (
        float((measured["finished_s"] - measured["intended_s"]).mean()),
        float(np.count_nonzero((ended >= start) & (ended < end))) / (end - start),
    )
    drawn = _draws(run, speed, clients, think, station.R + mean_think)
    note = f"{clients} clients, think {mean_think:.3g} s, phi({speed.seats}) = {speed(speed.seats):.3g} tokens/s"
    found = []
    for (name, unit), predicted, value, draws in zip(QUANTITIES, (station.R, station.X), true, drawn, strict=True):
        band = band_of(draws, value, predicted)
        found.append(Prediction("closed", name, unit, tested, predicted, value, len(measured), band, note=note))
    return found


def thinks(run: Run) -> Array:
    """Pauses from the end of a client's request to its next (s)."""
    rows = run.requests.sort_values(["session_id", "intended_s"], kind="stable")
    same = rows["session_id"].to_numpy()[1:] == rows["session_id"].to_numpy()[:-1]
    pauses = rows["intended_s"].to_numpy(dtype=float)[1:] - rows["finished_s"].to_numpy(dtype=float)[:-1]
    return np.maximum(pauses[same & np.isfinite(pauses)], 0.0)


def _one_each(run: Run) -> Check:
    """Between two requests of one client lies the end of the first."""
    rows = run.requests.sort_values(["session_id", "intended_s"], kind="stable")
    same = rows["session_id"].to_numpy()[1:] == rows["session_id"].to_numpy()[:-1]
    early = rows["intended_s"].to_numpy(dtype=float)[1:] < rows["finished_s"].to_numpy(dtype=float)[:-1] - 1e-6
    overlaps = int(np.count_nonzero(same & early))
    return Check(SAME_CLIENTS, f"{overlaps} requests sent before the answer to the one before", holds=overlaps == 0)


def _draws(run: Run, speed: SharedSpeed, clients: int, think: Array, cycle_s: float) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed_of(run))
    start, end = run.window
    each = math.ceil(1.5 * end / cycle_s) + 10  # requests of one client until well past the window
    pool = sizes_of(run)
    follows = np.arange(1, clients * each + 1)
    follows[each - 1 :: each] = -1
    first = run.requests.groupby("session_id")["intended_s"].min().to_numpy(dtype=float)
    arrivals = np.full(clients * each, np.nan)
    arrivals[::each] = first
    responses, rates = [], []
    for _ in range(DRAWS):
        pauses = rng.choice(think, arrivals.size) if think.size else np.zeros(arrivals.size)
        visits = share(arrivals, rng.choice(pool, arrivals.size), speed, speed.seats, follows, pauses)
        inside = (visits.arrived >= start) & (visits.arrived < end)
        responses.append(float(visits.sojourn[inside].mean()))
        rates.append(float(np.count_nonzero((visits.left >= start) & (visits.left < end))) / (end - start))
    return responses, rates


def saturation(run: Run, model: StepTimeModel | None, speed_change: float | None = None) -> list[Prediction]:
    """Completions a second while somebody always waits: the smallest of what seats, memory and token budget allow."""
    refused = None
    if model is None:
        refused = "not applicable: no step grid of this execution was calibrated"
    elif not run.requests["finish_reason"].isin(["stop", "length"]).any():
        refused = "too short"
    if refused or model is None:
        return refuse("saturation", SATURATION, refused)
    try:
        measured = capacity(run)
    except TooShort:
        return refuse("saturation", SATURATION, "too short")
    except ValueError as reason:
        return refuse("saturation", SATURATION, f"not applicable: {reason}")
    limits = limits_of(run, model)
    # Two doubts: of the measured rate, by its batch means, and of the machine's speed (uniform within what calibrations saw).
    batches = measured.batches - 1
    error = (measured.high - measured.rate) / float(stats.t.ppf((1 + measured.confidence) / 2, batches))
    doubt = max(LEAST_SPEED_DOUBT, abs(speed_change or 0.0)) / math.sqrt(3.0)
    error = math.hypot(error, doubt * limits.saturation)
    band = normal_band(limits.saturation, error, batches, measured.rate, seed_of(run))
    note = f"limited by {limits.binding}: seats {limits.seats:.3g}, kv {limits.kv:.3g}, budget {limits.budget:.3g}/s"
    name, unit = SATURATION[0]
    held = (checks.never_preempted(run.requests),) if limits.binding == "kv" else ()
    return [Prediction("saturation", name, unit, held, limits.saturation, measured.rate, measured.n, band, note=note)]


def limits_of(run: Run, model: StepTimeModel) -> EngineLimits:
    """The three bounds for the lengths that ``run`` had on its engine (a bound whose option was not recorded is inf)."""
    speed = shared_speed(run, model)
    facts = (run.meta.get("fingerprints") or {}).get("scheduling") or {}
    engine = {**facts, **{k: v for k, v in (run.meta.get("engine") or {}).items() if isinstance(v, int)}}
    by_seats = seat_limit(speed.seats, speed.mean_output, speed.seats / speed(speed.seats))
    by_memory = math.inf
    blocks, size = engine.get("num_kv_blocks"), engine.get("block_size")
    if blocks and size:
        # Blocks held while decoding, averaged over time: half a block is unused at the end.
        rows = blocks / (speed.context / size + 0.5)
        if rows < speed.seats:
            by_memory = speed(max(1, math.floor(rows))) / speed.mean_output
    budget = engine.get("max_num_batched_tokens")
    by_budget = math.inf
    if budget and speed.prompt > 0:
        decodes = budget * speed.mean_output / (speed.prompt + speed.mean_output)
        if decodes <= speed.seats:
            by_budget = budget_limit(speed.prompt, speed.mean_output, budget, _full_step(speed, budget, decodes))
    return EngineLimits(by_seats, by_memory, by_budget)


def _full_step(speed: SharedSpeed, budget: int, decodes: float) -> float:
    """Seconds of a step of ``budget`` tokens, of which ``decodes`` are rows of running requests."""
    rows, prompts = round(decodes), (budget - decodes) / speed.prompt
    shape = BatchShape(
        prefill_seqs=max(1, round(prompts)),
        decode_seqs=rows,
        prefill_tokens=budget - rows,
        decode_tokens=rows,
        kv_tokens=round(rows * speed.context),
        prefill_attention=prompts * speed.attention,
        logit_rows=rows + max(1, round(prompts)),
    )
    return speed.model(shape) * speed.model.time_factor + speed.model.gap(shape)
