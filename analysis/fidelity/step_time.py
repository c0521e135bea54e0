"""(b) How far the fitted step times are from steps that the fit has not seen, by term of the model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.fidelity.cells import Cell, Fitted, gaps_of, machine_factor
from analysis.fit.misfit import SHAPE_TERMS

CLASSES = ("all", "decode only", "mixed", "prefill only", "after idle", *SHAPE_TERMS)


def step_time_table(fitted: Fitted) -> pd.DataFrame:
    """One row for each held-out point and class of steps.

    Columns: steps, rms and bias of predicted over measured time (steps that the machine disturbed set aside), bias with each
    run's machine factor taken out, and the same for the gap between steps.
    """
    return pd.DataFrame([row for cell in fitted.held_out for row in _rows(cell, fitted)])


def _rows(cell: Cell, fitted: Fitted) -> list[dict[str, object]]:
    tables, factors, gaps = [], [], []
    for run in cell.runs:
        steps = run.steps
        tables.append(steps)
        factors.append(np.full(len(steps), machine_factor(run, fitted.model)))
        busy = steps["idle_s"].to_numpy(dtype=float)[1:] == 0
        between = steps["start_s"].to_numpy(dtype=float)[1:] - steps["end_s"].to_numpy(dtype=float)[:-1]
        priced = gaps_of(steps, fitted.model)[:-1]
        gaps.append((between[busy], priced[busy]))
    steps = pd.concat(tables, ignore_index=True)
    misfit = fitted.model.misfit_on(steps)
    factor = float(np.mean(np.concatenate(factors)))
    classes = {"all": {"n": misfit.n, "rms": misfit.rms, "bias": misfit.bias}, **misfit.by_term}
    gap_s, priced_s = (float(np.concatenate(part).mean()) for part in zip(*gaps, strict=True))
    rows: list[dict[str, object]] = [
        {
            "cell": cell.name,
            "class": name,
            "steps": classes[name]["n"],
            "rms": classes[name]["rms"],
            "bias": classes[name]["bias"],
            "bias_corrected": (1 + classes[name]["bias"]) * factor - 1,
        }
        for name in CLASSES
        if classes.get(name, {}).get("n")
    ]
    if not gap_s:  # an engine without gaps: a simulated one
        return rows
    gap = {"cell": cell.name, "class": "gap", "steps": sum(len(part[0]) for part in gaps), "rms": float("nan")}
    return [*rows, {**gap, "bias": priced_s / gap_s - 1, "bias_corrected": priced_s * factor / gap_s - 1}]
