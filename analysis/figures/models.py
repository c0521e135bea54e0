"""Measured against models: each statement as a dot on the band in which runs of its length would lie."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.style import INK, MUTED, SERIES, Drawn, Style, axes, finish
from analysis.predictions.base import BAND
from analysis.tables import with_unit

MOST = 24  # statements that one picture holds
LOOKS = {  # colour and marker by verdict
    "agrees": (SERIES[0], "o"),
    "differs": (SERIES[1], "X"),
    "borderline": (SERIES[1], "d"),
    "too short": (MUTED, "D"),
    "assumption violated": (SERIES[3], "s"),
}
REACH = 3.0  # measured over predicted at which the axis ends


def against_models(comparison: pd.DataFrame, style: Style) -> Drawn | None:
    """Measured over predicted for every statement that has a band; None where there is none."""
    rows = comparison[comparison["low"].notna() & (comparison["prediction"] > 0)]
    if rows.empty:
        return None
    rest = max(0, len(rows) - MOST)
    rows = rows.head(MOST).reset_index(drop=True)
    low, high, here = (rows[key] / rows["prediction"] for key in ("low", "high", "measured"))
    verdict = rows["verdict"].str.split(":").str[0]
    end = min(REACH, 1.1 * max(float(high.max()), float(here.max())))
    with axes(style, height=max(0.8, 0.075 * len(rows) + 0.45)) as (figure, (ax,)):
        y = np.arange(len(rows))
        ax.hlines(y, low.clip(lower=0.0), high.clip(upper=end), color=SERIES[5], alpha=0.35, lw=2.2 * style.marker)
        ax.axvline(1.0, color=INK, lw=1.0)
        for kind in verdict.unique():
            colour, marker = LOOKS.get(kind, (MUTED, "v"))
            mask = (verdict == kind).to_numpy()
            ax.plot(here[mask].clip(upper=end), y[mask], marker, color=colour, ls="none", label=kind)
        ax.set_yticks(y, [_label(row) for row in rows.to_dict("records")])
        ax.invert_yaxis()
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)
        ax.set_xlim(0, end)
        ax.set_xlabel("measured / predicted")
        figure.legend(loc="outside lower center", ncols=2)
    noticed = 100 * rows["detectable"].dropna()
    cut = int((high > end).sum())
    return finish(
        figure,
        "models",
        "Measured against models",
        label="measured over predicted for each model, with the band in which runs of this length lie",
        look="A mark outside its strip contradicts the model, or is borderline: one of so many may lie there by chance. "
        "A long strip means that the run is too short to contradict anything: that is not agreement.",
        caption=f"Client's and engine's stamps, n = {_span(rows['n'])} requests a run. Strip: where {BAND:.0%} of runs of "
        "that length and warm-up would lie if the model were true. "
        + (
            f"Noticed with probability 0.9: deviations of {noticed.min():.0f} to {noticed.max():.0f} %."
            if len(noticed)
            else ""
        )
        + (f" {cut} strips go on to the right of the picture." if cut else "")
        + (f" {rest} further statements are in the table." if rest else ""),
        data=rows[
            ["run", "model", "quantity", "unit", "n", "measured", "prediction", "low", "high", "detectable", "verdict"]
        ],
    )


def _label(row: dict[Any, Any]) -> str:
    run = str(row["run"]).removesuffix("/0").replace("/", " ")
    return f"{run}: {row['model']}, {with_unit(row['quantity'], row['unit'])}"


def _span(n: pd.Series) -> str:
    low, high = int(n.min()), int(n.max())
    return str(low) if math.isclose(low, high) else f"{low} to {high}"
