"""(e) Where each closed form holds: a map over load and seats.

The truth of the map is the fitted engine in virtual time, long enough that chance hardly matters; each formula is then held
against it. Nothing here is measured, but everything follows from the measured step times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.fidelity.cells import Fitted
from analysis.predictions.shared_queue import shared_speed
from analysis.queues import MG1, MMc, StateDependent, UnstableQueueError
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.simulation.facts import EngineFacts
from analysis.simulation.mix import RequestMix, simulated_capacity

SEATS = (1, 2, 4, 8, 16, 32)
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9)
REQUESTS = 3000
CAPACITY_S = 120.0
BAR = 0.05


def theory_table(
    fitted: Fitted, seats: tuple[int, ...] = SEATS, loads: tuple[float, ...] = LOADS, requests: int = REQUESTS
) -> pd.DataFrame:
    """One row for each number of seats, load and closed form of the mean E2E: simulated, the formula's, error, outcome (bar
    5 %, interval from batch means of the simulated requests)."""
    mix, engine = RequestMix.of(fitted.runs), fitted.runs[0]
    rows = []
    for number in seats:
        budget = max(number, int(EngineFacts.of(engine).scheduling["max_num_batched_tokens"]))
        facts = EngineFacts.of(engine, {"max_num_seqs": number, "max_num_batched_tokens": budget})
        capacity = simulated_capacity(mix, fitted.model, facts, CAPACITY_S)
        for load in loads:
            rate = load * capacity
            run = simulate_engine(
                mix.open_loop(rate, requests, requests // 10, seed=7), fitted.model, facts, seed=number
            )
            run.meta["engine"] = {"max_num_seqs": number, "max_num_batched_tokens": budget}
            rows += _rows(run, fitted, number, load, rate, capacity)
    return pd.DataFrame(rows)


def _rows(run: Run, fitted: Fitted, seats: int, load: float, rate: float, capacity: float) -> list[dict[str, Any]]:
    requests = run.measured.sort_values("intended_s")
    e2e = (requests["finished_s"] - requests["intended_s"]).to_numpy(dtype=float)
    mean = float(e2e.mean())
    parts = [float(part.mean()) for part in np.array_split(e2e, 10)]
    half = 2.262 * float(np.std(parts, ddof=1)) / np.sqrt(len(parts))  # Student's t, 9 degrees of freedom
    rows = []
    for name, predicted in _closed_forms(run, fitted, seats, rate, capacity).items():
        error = predicted / mean - 1
        low, high = predicted / (mean + half) - 1, predicted / (mean - half) - 1 if half < mean else np.inf
        is_inside, is_outside = low >= -BAR and high <= BAR, low > BAR or high < -BAR
        outcome = "unstable" if not np.isfinite(predicted) else "meets" if is_inside else "cannot tell"
        rows.append(
            {
                "seats": seats,
                "load": load,
                "model": name,
                "simulated": mean,
                "formula": predicted,
                "error": error,
                "low": low,
                "high": high,
                "outcome": "misses" if is_outside and np.isfinite(predicted) else outcome,
            }
        )
    return rows


def _closed_forms(run: Run, fitted: Fitted, seats: int, rate: float, capacity: float) -> dict[str, float]:
    """Mean E2E (s) by each formula; inf where it says that the queue is unstable."""
    requests = run.measured
    speed = shared_speed(run, fitted.model)
    forms = {
        "ps": lambda: StateDependent(rate, lambda n: speed(n) / speed.mean_output).W,
        "limited-ps": lambda: StateDependent(rate, lambda n: speed(n) / speed.mean_output, seats=seats).W,
        "mmc (seats as servers)": lambda: MMc(rate, capacity / seats, seats).W,
    }
    if seats == 1:
        service = (requests["done_s"] - requests["scheduled_s"]).to_numpy(dtype=float)
        forms["mg1"] = lambda: MG1(rate, service).W
    found = {}
    for name, form in forms.items():
        try:
            found[name] = float(form())
        except UnstableQueueError:
            found[name] = float("inf")
    return found
