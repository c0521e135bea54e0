"""TTFT while nobody waits for a seat: the rest of the step in progress and the step with the own prompt (``FirstToken``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, refuse, seed_of
from analysis.predictions.shared_queue import SharedSpeed, shared_speed
from analysis.predictions.sharing import not_shared
from analysis.queues.engine import FirstToken
from analysis.runs import Run

Array = NDArray[np.float64]

QUANTITIES = (("mean TTFT", "s"),)
DRAWS = 1000
WHOLE_PROMPTS = "the prompt fits into the step after arrival"
MOST_CHUNKED = 0.05  # of the prompts that may need a second step


def ttft(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean TTFT from the engine's own steps (no request's stamp) and the calibrated time of the prompt's step.

    The band: as many arrivals at uniformly random moments of the measured window as there were, each waiting for the end of
    the step it falls into, with a prompt drawn from the run's.
    """
    refused = not_shared(run, model, seats=False)
    if not run.recorded("steps"):
        refused = "not applicable: the engine's steps were not recorded"
    if refused or model is None:
        return refuse("ttft", QUANTITIES, refused)
    speed = shared_speed(run, model)
    start, end = run.window
    begins, ends = _busy_stretches(run, start, end)
    if begins.size == 0:
        return refuse("ttft", QUANTITIES, "too short")
    busy = float(np.sum(np.minimum(ends, end) - np.maximum(begins, start))) / (end - start)
    requests = run.measured
    batch = _batch(run, speed)
    prefill, further = _prefill(run, speed, batch), speed.further_prompt(batch)
    transit = _transit(run)
    # Whoever else arrives during the same step has its prompt computed in the same next one.
    length = ends - begins
    companions = min(busy, 1.0) * len(requests) / (end - start) * float(np.mean(length**2) / np.mean(length))
    queue = FirstToken(length, min(busy, 1.0), prefill + transit + companions * further)
    measured = float((requests["first_token_s"] - requests["intended_s"]).mean())
    tested = (
        checks.poisson_of(run, sessions=False),
        checks.nobody_waits(requests),
        _whole_prompts(run),
    )
    rng = np.random.default_rng(seed_of(run))
    draws = []
    for _ in range(DRAWS):
        at = rng.uniform(start, end, len(requests))
        inside = np.maximum(np.searchsorted(begins, at, side="right") - 1, 0)
        within = (at >= begins[inside]) & (at < ends[inside])
        rest = np.where(within, ends[inside] - at, 0.0)
        together = np.bincount(inside[within], minlength=begins.size)
        others = float(np.sum(together * (together - 1))) / len(requests)
        draws.append(float(np.mean(rest) + np.mean(rng.choice(prefill, len(requests)))) + transit + others * further)
    note = (
        f"busy {busy:.0%}, rest of a step {1e3 * queue.wait:.1f} ms, own step {1e3 * float(prefill.mean()):.1f} ms, "
        f"{companions:.2g} others' prompts in it, {1e3 * further:.1f} ms each"
    )
    name, unit = QUANTITIES[0]
    band = band_of(draws, measured, queue.mean)
    return [Prediction("ttft", name, unit, tested, queue.mean, measured, len(requests), band, note=note)]


def _busy_stretches(run: Run, start: float, end: float) -> tuple[Array, Array]:
    """Begin and end of each step that touches the window, the gap behind it included unless the engine was idle then."""
    steps = run.steps.sort_values("step", kind="stable")
    begin, finish = (steps[name].to_numpy(dtype=float) for name in ("start_s", "end_s"))
    idle = np.nan_to_num(steps["idle_s"].to_numpy(dtype=float))
    ends = finish.copy()
    ends[:-1] = np.where(idle[1:] == 0, begin[1:], finish[:-1])
    kept = (begin < end) & (ends > start)
    return begin[kept], ends[kept]


def _batch(run: Run, speed: SharedSpeed) -> int:
    """A prompt and the mean number of others running."""
    rows = run.measured
    start, end = run.window
    others = float((rows["finished_s"] - rows["first_token_s"]).sum()) / (end - start)
    return 1 + round(min(others, speed.seats - 1))


def _prefill(run: Run, speed: SharedSpeed, batch: int) -> Array:
    """Seconds of the step that computes each measured request's prompt, ``batch`` sequences in it."""
    rows = run.measured
    whole = rows["prompt_tokens"].to_numpy(dtype=float)
    prompt = whole - np.nan_to_num(rows["cached_tokens"].to_numpy(dtype=float))
    times = [speed.first_step(batch, p, p * (w - p / 2)) for p, w in zip(prompt.tolist(), whole.tolist(), strict=True)]
    return np.array(times)


def _transit(run: Run) -> float:
    """Mean way from the intended arrival to the engine, and of the first token back (s)."""
    rows = run.measured
    there = (rows["received_s"] - rows["intended_s"]).mean()
    back = (rows["first_token_s"] - rows["emitted_first_s"]).mean()
    return float(np.nan_to_num(there) + np.nan_to_num(back))


def _whole_prompts(run: Run) -> Check:
    budget = (run.meta.get("engine") or {}).get("max_num_batched_tokens")
    rows = run.measured
    prompt = rows["prompt_tokens"].to_numpy(dtype=float) - np.nan_to_num(rows["cached_tokens"].to_numpy(dtype=float))
    share = float(np.mean(prompt > budget)) if budget else 0.0
    return Check(WHOLE_PROMPTS, f"{share:.0%} of the prompts exceed the budget", holds=share <= MOST_CHUNKED)
