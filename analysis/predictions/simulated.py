"""The engine's own core in virtual time, offered the run's own arrivals and lengths: what the fitted step time explains.

The requests are the same, so most of the chance is in both; what is left is the machine. Each draw resamples the noise of the
steps, and takes a speed of the machine from within what the two calibrations around the sweep saw.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions.base import Band, Check, Prediction, band_of, seed_of
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.summary import latencies

Array = NDArray[np.float64]

QUANTITIES = (("mean TTFT", "s", "ttft"), ("mean E2E", "s", "e2e"))
DRAWS = 10
LEAST_SPEED_DOUBT = 0.01  # relative: no machine's speed is known better than this from two short calibrations
KNOWN_SHAPES = "step shapes as calibrated"
MOST_OUTSIDE = 0.5  # of the steps: prices are linear, so some reach beyond the grid does no harm
DEFAULT_COOLDOWN_S = 60.0


def simulation(run: Run, model: StepTimeModel | None, speed_change: float | None = None) -> list[Prediction]:
    """Mean TTFT and E2E of the same requests, simulated.

    A closed loop stays one (its clients, lengths and think times); so do sessions.

    Args:
        model: fitted on a grid of the same execution.
        speed_change: relative change of the capacity from before to after the sweep (None: not known).
    """
    refused = None
    if model is None:
        refused = "not applicable: no step grid of this execution was calibrated"
    elif not run.measured["finish_reason"].isin(["stop", "length"]).all():
        refused = "too short"
    if refused is not None or model is None:
        return [Prediction("simulation", name, unit, refused=refused) for name, unit, _ in QUANTITIES]
    doubt = max(LEAST_SPEED_DOUBT, abs(speed_change or 0.0))
    measured = latencies(run)
    try:
        draws, outside, scatter = _draw(run, model, doubt, measured["e2e"])
    except ValueError as reason:  # prompts that were not kept, or another execution than the calibrated one
        return [
            Prediction("simulation", name, unit, refused=f"not applicable: {reason}") for name, unit, _ in QUANTITIES
        ]
    note = f"{DRAWS} simulations of the same requests, speed ± {doubt:.1%}"
    note += "" if math.isnan(scatter) else f"; median error of a request {scatter:.1%}"
    check = Check(KNOWN_SHAPES, f"{outside:.0%} of the steps are outside the grid", holds=outside <= MOST_OUTSIDE)
    found = []
    for name, unit, key in QUANTITIES:
        values, true = draws[key], float(measured[key].mean())
        predicted = float(np.mean(values))
        band: Band | None = band_of(values, true, predicted) if np.isfinite(values).all() else None
        row = Prediction("simulation", name, unit, (check,), predicted, true, len(run.measured), band, note=note)
        found.append(row if band is not None else replace(row, refused="too short"))
    return found


def same_requests(run: Run, simulated: Run) -> bool:
    """Whether both measured the same requests in one order; a closed loop and sessions have others."""
    ids, others = (each.measured.sort_values("intended_s", kind="stable")["request_id"] for each in (run, simulated))
    return ids.tolist() == others.tolist()


def cooldown_of(run: Run) -> float:
    """How long the run waited for its last measured requests (s)."""
    stated = ((run.meta.get("spec") or {}).get("cooldown") or {}).get("seconds")
    return DEFAULT_COOLDOWN_S if stated is None else float(stated)


def _draw(run: Run, model: StepTimeModel, doubt: float, e2e: Array) -> tuple[dict[str, Array], float, float]:
    """Means by quantity (one a draw), the share of steps outside the grid, the median relative error of a request."""
    rng = np.random.default_rng(0)
    means: dict[str, list[float]] = {key: [] for _, _, key in QUANTITIES}
    outside, paths = [], []
    own = seed_of(run)
    for draw in range(DRAWS):
        # The speeds are the same for every run of a study, as the machine is; the noise of the steps is each run's own.
        machine = model.scaled(float(rng.uniform(1 - doubt, 1 + doubt)))
        simulated = simulate_engine(run, machine, seed=own + draw, cooldown_limit_s=cooldown_of(run))
        about = simulated.meta["simulation"]
        outside.append(about["extrapolated_steps"] / max(1, about["steps"]))
        durations = latencies(simulated)
        if same_requests(run, simulated):
            paths.append(durations["e2e"])
        for _, _, key in QUANTITIES:
            means[key].append(float(np.mean(durations[key])))
    scatter = math.nan
    if len(paths) == DRAWS:
        with np.errstate(invalid="ignore"):
            scatter = float(np.median(np.abs(np.mean(paths, axis=0) - e2e) / e2e))
    return {key: np.array(values) for key, values in means.items()}, float(np.mean(outside)), scatter
