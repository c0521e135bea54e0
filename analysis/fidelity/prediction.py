"""(c) Fitted on one load, predicting others: the same requests simulated, against each repeat.

Every repeat has the same arrivals and lengths, so the spread of the errors is the machine's alone. *Raw* is the fitted model
as it is, with the noise that the machine had in the fitted runs. *Corrected* takes one factor a repeat from its reference
steps (``machine_factor``) and mean step times instead of other runs' noise, so that what is left is the simulation's own.
Requests are sent when the measured client sent them: its lag is none of the model's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.fidelity.cells import Cell, Fitted, Floats, error_interval, machine_factor
from analysis.fit.step_time import StepTimeModel
from analysis.predictions.simulated import cooldown_of, same_requests
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.summary import latencies

DRAWS = 4  # simulations of a repeat, each with its own noise
QUANTILES = {"P90": 0.9, "P99": 0.99}
REAL_BARS = {
    "throughput": 0.01,
    "capacity": 0.03,
    "mean ITL": 0.02,
    "mean E2E": 0.02,
    "P90 E2E": 0.04,
    "mean TTFT": 0.05,
    "P90 TTFT": 0.10,
}
EMULATED_BARS = {
    **dict.fromkeys(("throughput", "mean ITL", "mean E2E", "mean TTFT", "capacity"), 0.01),
    **dict.fromkeys(("P90 E2E", "P99 E2E", "P90 TTFT", "P99 TTFT"), 0.02),
}
HIGHEST_LOAD = 0.8  # beyond it errors on the real engine are reported, without a bar


def prediction_table(fitted: Fitted, draws: int = DRAWS) -> pd.DataFrame:
    """One row for each held-out point, quantity and kind (raw, corrected).

    Columns: measured and predicted (means over the repeats), error with its 95 % interval over the repeats, the bar and the
    outcome; for the rows of E2E also median and p90 of the relative error of a single request.
    """
    return pd.DataFrame([row for cell in fitted.held_out for row in _rows(cell, fitted, draws)])


def statements(run: Run, window: tuple[float, float] | None = None) -> dict[str, float]:
    """What is predicted of a run: throughput, latencies (s); for a closed loop that fills every seat, capacity.

    Args:
        window: in which completions are counted (default: the run's own, which ends with its last request).
    """
    start, end = run.window if window is None else window
    done = run.requests["done_s"].to_numpy(dtype=float)
    finished = run.requests["finish_reason"].isin(["stop", "length"]).to_numpy(dtype=bool)
    rate = float(np.count_nonzero(finished & (done >= start) & (done < end))) / (end - start)
    if is_saturated(run):
        return {"capacity": rate, "mean ITL": _mean_gap(run)}
    found = {"throughput": rate, "mean ITL": _mean_gap(run)}
    for name, values in latencies(run).items():
        if name == "tpot":
            continue
        found[f"mean {name.upper()}"] = float(np.mean(values))
        for label, q in QUANTILES.items():
            found[f"{label} {name.upper()}"] = float(np.quantile(values, q, method="inverted_cdf"))
    return found


def is_saturated(run: Run) -> bool:
    """Whether the run is a closed loop with at least two clients a seat."""
    arrivals = (run.meta.get("spec") or {}).get("arrivals") or {}
    seats = (run.meta.get("engine") or {}).get("max_num_seqs")
    return arrivals.get("process") == "closed" and seats is not None and arrivals["clients"] >= 2 * int(seats)


def bars_of(run: Run) -> Mapping[str, float]:
    """The bars that apply to a run: those of the emulated engine, those of the real one, or none above load .8."""
    execution = (run.meta.get("fingerprints") or {}).get("execution") or {}
    if execution.get("executor") == "emulated":
        return EMULATED_BARS
    load = ((run.meta.get("spec") or {}).get("arrivals") or {}).get("load")
    return {} if load is not None and load > HIGHEST_LOAD else REAL_BARS


def _rows(cell: Cell, fitted: Fitted, draws: int) -> list[dict[str, Any]]:
    measured = pd.DataFrame([statements(run) for run in cell.runs])
    factors = [machine_factor(run, fitted.model) for run in cell.runs]
    found: list[dict[str, Any]] = []
    for kind in ("raw", "corrected"):
        if kind == "raw":
            drawn = [_predict(run, fitted.model, draws, 1000 * i) for i, run in enumerate(cell.runs)]
        else:
            pairs = zip(cell.runs, factors, strict=True)
            drawn = [_predict(run, fitted.model.scaled(factor), 0, 0) for run, factor in pairs]
        predicted = pd.DataFrame([values for values, _ in drawn])
        apart = np.concatenate([errors for _, errors in drawn])
        for name in measured.columns:
            error = error_interval(predicted[name] / measured[name] - 1)
            bar = bars_of(cell.runs[0]).get(name)
            found.append(
                {
                    "cell": cell.name,
                    "quantity": name,
                    "kind": kind,
                    "repeats": error.n,
                    "measured": float(measured[name].mean()),
                    "predicted": float(predicted[name].mean()),
                    "error": error.mean,
                    "low": error.low,
                    "high": error.high,
                    "bar": math.nan if bar is None else bar,
                    "outcome": error.outcome(bar),
                    "request_median": float(np.median(apart)) if name == "mean E2E" and apart.size else math.nan,
                    "request_p90": float(np.quantile(apart, 0.9)) if name == "mean E2E" and apart.size else math.nan,
                    "machine": float(np.mean(factors)),
                    "machine_spread": float(np.std(factors, ddof=1)) if len(factors) > 1 else math.nan,
                }
            )
    return found


def _predict(run: Run, model: StepTimeModel, draws: int, seed: int) -> tuple[dict[str, float], Floats]:
    """Means over the draws (0: one simulation without noise) of what is predicted, and the absolute relative error of each
    measured request's E2E."""
    simulated = [
        simulate_engine(run, model, seed=seed + i, noise=draws > 0, cooldown_limit_s=cooldown_of(run))
        for i in range(max(1, draws))
    ]
    table = pd.DataFrame([statements(each, run.window) for each in _with_facts(run, simulated)])
    means = {str(name): float(value) for name, value in table.mean().items()}
    if not all(same_requests(run, each) for each in simulated):
        return means, np.empty(0)
    e2e = np.mean([latencies(each)["e2e"] for each in simulated], axis=0)
    true = latencies(run)["e2e"]
    kept = np.isfinite(true) & np.isfinite(e2e)
    return means, np.abs(e2e[kept] / true[kept] - 1)


def _with_facts(run: Run, simulated: list[Run]) -> list[Run]:
    for each in simulated:
        each.meta["engine"] = dict(run.meta.get("engine") or {})
    return simulated


def _mean_gap(run: Run) -> float:
    """Mean time between successive tokens of a request, over the tokens of the measured requests (nan without any)."""
    kept = set(run.measured["request_id"])
    tokens = run.tokens[run.tokens["request_id"].isin(kept)]["token_s"]
    gaps = [np.diff(np.asarray(stamps, dtype=float)) for stamps in tokens]
    together = np.concatenate(gaps) if gaps else np.empty(0)
    return float(together.mean()) if together.size else math.nan
