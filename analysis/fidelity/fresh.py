"""(d) Fresh arrivals: how often a measured point lies inside the band that the simulation gives for a run of its length.

Arrivals and lengths are drawn anew in the simulation, as they were in the measured replications: this is what a prediction
is worth before the run is made. The band also holds the machine, whose speed varies as it did over the repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.fidelity.cells import Cell, Fitted, machine_factor
from analysis.fidelity.prediction import statements
from analysis.simulation import simulate_engine
from analysis.simulation.mix import RequestMix

DRAWS = 60
BAND = 0.95
LEAST_REPLICATIONS = 3
QUANTITIES = ("throughput", "mean ITL", "mean E2E", "P90 E2E", "mean TTFT", "P90 TTFT")


def fresh_table(fitted: Fitted, draws: int = DRAWS) -> pd.DataFrame:
    """One row for each quantity of each point with at least three replications of Poisson arrivals: the band, how many of
    the measured points it holds, and the interval (Clopper and Pearson) of that share.

    ``outcome`` is ``meets`` where the share may well be 95 % (the interval holds it), else ``misses``.
    """
    factors = [machine_factor(run, fitted.model) for cell in fitted.held_out for run in cell.runs]
    spread = float(np.std(factors, ddof=1)) if len(factors) > 1 else 0.0
    cells = [cell for cell in fitted.held_out if cell.replications >= LEAST_REPLICATIONS and _is_poisson(cell)]
    return pd.DataFrame([row for cell in cells for row in _rows(cell, fitted, spread, draws)])


def _rows(cell: Cell, fitted: Fitted, spread: float, draws: int) -> list[dict[str, Any]]:
    mix = RequestMix.of(cell.runs)
    measured = pd.DataFrame([statements(run) for run in cell.runs])
    number = round(float(np.mean([len(run.measured) for run in cell.runs])))
    before = round(float(np.mean([np.count_nonzero(run.requests["phase"] == "warmup") for run in cell.runs])))
    rate = float(cell.runs[0].meta["rate"])
    rng = np.random.default_rng(0)
    simulated = []
    for draw in range(draws):
        model = fitted.model.scaled(max(0.5, 1.0 + spread * float(rng.standard_normal())))
        run = simulate_engine(mix.open_loop(rate, number, before, draw), model, cell.runs[0], seed=draw)
        simulated.append(statements(run))
    predicted = pd.DataFrame(simulated)
    rows = []
    for name in QUANTITIES:
        low, high = (float(np.quantile(predicted[name], q)) for q in ((1 - BAND) / 2, (1 + BAND) / 2))
        inside = int(((measured[name] >= low) & (measured[name] <= high)).sum())
        share = stats.binomtest(inside, len(measured)).proportion_ci()
        rows.append(
            {
                "cell": cell.name,
                "quantity": name,
                "band_low": low,
                "band_high": high,
                "measured_low": float(measured[name].min()),
                "measured_high": float(measured[name].max()),
                "inside": inside,
                "points": len(measured),
                "share_low": float(share.low),
                "share_high": float(share.high),
                "outcome": "meets" if share.high >= BAND else "misses",
            }
        )
    return rows


def _is_poisson(cell: Cell) -> bool:
    spec = cell.runs[0].meta.get("spec") or {}
    return (spec.get("arrivals") or {}).get("process") == "poisson"
