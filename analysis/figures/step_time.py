"""The step-time fit: measured steps against the requests in the batch, the fitted model and the textbook's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.style import MUTED, SERIES, Drawn, Style, axes, finish
from analysis.fit.step_time import StepTimeModel
from analysis.study import Calibration

DOTS = 600


def step_time(name: str, calibration: Calibration, style: Style, seed: int = 0) -> Drawn | None:
    """Steps that only decode, of the grid and the saturated loop; None where the fit failed or nothing varied."""
    model = calibration.step_time
    if not isinstance(model, StepTimeModel):
        return None
    tables = [run.steps for run in (calibration.grid, calibration.before) if run is not None]
    steps = pd.concat(tables, ignore_index=True)
    steps = steps[(steps["prefill_tokens"] == 0) & (steps["decode_seqs"] > 0)]
    if steps["decode_seqs"].nunique() < 2:
        return None
    rows = steps["decode_seqs"].to_numpy(dtype=float)
    duration = 1e3 * (steps["end_s"] - steps["start_s"]).to_numpy(dtype=float)
    predicted = 1e3 * np.asarray(model.predict(steps))
    sizes = np.unique(rows)
    fitted = np.array([predicted[rows == n].mean() for n in sizes])
    low, high = (np.array([np.quantile(predicted[rows == n], q) for n in sizes]) for q in (0.05, 0.95))
    line = 1e3 * (model.textbook.a_s + model.textbook.b_s * sizes)
    shown = np.sort(np.random.default_rng(seed).permutation(rows.size)[:DOTS])
    top = 1.25 * max(float(np.quantile(duration, 0.99)), float(high.max()))
    above = int(np.count_nonzero(duration > top))
    with axes(style) as (figure, (ax,)):
        dots: dict[str, Any] = {"ms": 0.5 * style.marker, "alpha": 0.4, "mew": 0}
        ax.plot(rows[shown], duration[shown], "o", color=SERIES[0], ls="none", label="one step", **dots)
        ax.fill_between(sizes, low, high, color=SERIES[1], alpha=0.2, lw=0, label="fit, by the context read")
        ax.plot(sizes, fitted, color=SERIES[1], label="fit, mean")
        ax.plot(sizes, line, color=MUTED, ls=(0, (4, 2)), label="a + b·n")
        ax.set_xlim(0, 1.04 * float(sizes[-1]))
        ax.set_ylim(0, top)
        ax.set_xlabel("requests in the step, n")
        ax.set_ylabel("step (ms)")
        ax.legend(loc="lower right")
    table = pd.DataFrame({"decode_seqs": rows, "measured_ms": duration, "fitted_ms": predicted})
    table["textbook_ms"] = 1e3 * (model.textbook.a_s + model.textbook.b_s * rows)
    return finish(
        figure,
        f"step-time-{name}",
        f"Step time ({calibration.label})",
        label="duration of decode steps against the number of requests in them, with two fits",
        look="A step with many requests costs far less than as many steps: that is what batching earns. Where the bend "
        "leaves the dashed line, the textbook's a + b·n is wrong.",
        caption=f"Engine's stamps of {rows.size} steps that only decode (grid and loop before the sweep"
        + (f"; at most {DOTS} dots" if rows.size > DOTS else "")
        + (f"; {above} steps lie above the picture" if above else "")
        + f"). Fit of all steps: {model.misfit}. Textbook: {model.textbook}. A term worth less than the rms is not noticed.",
        data=table,
    )
