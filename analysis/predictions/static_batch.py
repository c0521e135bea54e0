"""``static_batch`` with equal outputs: a batch service whose time grows along a line with the batch (``BatchService``)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions import checks
from analysis.predictions.base import Check, Prediction, band_of, refuse, seed_of
from analysis.predictions.shared_queue import SharedSpeed, shared_speed
from analysis.predictions.sharing import too_few_or_unknown
from analysis.queues import BatchService, UnstableQueueError
from analysis.runs import Run
from analysis.stability import squared_cv
from engine.executors.base import BatchShape

Array = NDArray[np.float64]

QUANTITIES = (("mean E2E", "s"),)
EQUAL_OUTPUTS = "equal outputs"
MOST_CV2 = 0.0025  # 5 % of the mean
DRAWS = 400


def batch_service(run: Run, model: StepTimeModel | None) -> list[Prediction]:
    """Mean E2E when a batch begins and ends together: Bailey's chain with alpha and tau0 from the step-time model."""
    refused, policy = too_few_or_unknown(run, model), checks.policy_of(run)
    if policy != "static_batch":
        refused = f"not applicable: the policy is {policy}, this is a model of static_batch"
    if refused or model is None:
        return refuse("batch-service", QUANTITIES, refused)
    speed = shared_speed(run, model)
    start, end = run.window
    requests = run.measured
    lam = float(run.meta.get("rate") or len(requests) / (end - start))
    alpha, tau0 = batch_line(speed, int((run.meta.get("engine") or {}).get("max_num_batched_tokens", 1 << 30)))
    outputs = requests["output_tokens"].to_numpy(dtype=float)
    spread = squared_cv(outputs)
    tested = (
        checks.poisson_of(run, sessions=False),
        Check(
            EQUAL_OUTPUTS,
            f"their cv is {math.sqrt(spread):.2f}: a batch lasts as its longest",
            holds=spread <= MOST_CV2,
        ),
        checks.patient(run.requests),
    )
    number = len(requests)
    try:
        queue = BatchService(lam, alpha, tau0, cap=speed.seats)
    except UnstableQueueError:
        return refuse("batch-service", QUANTITIES, "unstable", tested, number)
    measured = float((requests["finished_s"] - requests["intended_s"]).mean())
    skip = int(np.count_nonzero(run.requests["phase"] == "warmup"))
    rng = np.random.default_rng(seed_of(run))
    draws = [
        float(
            batch_sojourns(np.cumsum(rng.exponential(1 / lam, skip + number)), alpha, tau0, speed.seats)[skip:].mean()
        )
        for _ in range(DRAWS)
    ]
    note = f"a batch of b takes {1e3 * alpha:.3g} b + {1e3 * tau0:.3g} ms, at most {speed.seats}; lambda = {lam:.3g}/s"
    band = band_of(draws, measured, queue.W)
    return [Prediction("batch-service", *QUANTITIES[0], tested, queue.W, measured, number, band, note=note)]


def batch_line(speed: SharedSpeed, budget: int) -> tuple[float, float]:
    """(alpha, tau0): least squares over b = 1..seats of the seconds that b equal requests take together."""
    sizes = np.arange(1, speed.seats + 1)
    times = np.array([_batch_time(speed, int(b), budget) for b in sizes])
    alpha, tau0 = np.polyfit(sizes, times, 1) if sizes.size > 1 else (float(times[0]), 0.0)
    return max(float(alpha), 0.0), max(float(tau0), 0.0)


def _batch_time(speed: SharedSpeed, b: int, budget: int) -> float:
    tokens = round(b * speed.prompt)
    steps = max(1, math.ceil(tokens / budget))
    prompts = BatchShape(b, 0, tokens, 0, 0, b * speed.attention, b)
    first = speed.model(prompts) * speed.model.time_factor + speed.model.gap(prompts)
    further = (steps - 1) * (speed.model.base_s * speed.model.time_factor + speed.model.gap_prices[0])
    return first + further + (speed.mean_output - 1.0) * speed.decode_step(b)


def batch_sojourns(arrivals: Array, alpha: float, tau0: float, cap: int) -> Array:
    """Sojourns (s) of the batch queue: a free server takes all who wait, up to ``cap``, for alpha b + tau0 seconds."""
    left = np.empty_like(arrivals)
    free, i = 0.0, 0
    while i < arrivals.size:
        begin = max(free, float(arrivals[i]))
        b = min(int(np.searchsorted(arrivals, begin, side="right")) - i, cap)
        free = begin + alpha * b + tau0
        left[i : i + b] = free
        i += b
    return left - arrivals
