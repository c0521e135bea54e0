"""How faithful the simulation is: ``python -m analysis.fidelity RESULTS [--part PART] [--fit EXPERIMENT] [--save FOLDER]``.

Parts: ``schedule`` (step by step), ``step_time`` (held-out error by term), ``prediction`` (other loads, lengths, arrivals,
policies, memory), ``fresh`` (new arrivals inside the band), ``theory`` (where closed forms hold). Without --part, all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis.fidelity.cells import FIT_EXPERIMENT, Fitted, fit_study
from analysis.fidelity.fresh import fresh_table
from analysis.fidelity.prediction import prediction_table
from analysis.fidelity.schedule import schedule_table
from analysis.fidelity.step_time import step_time_table
from analysis.fidelity.theory import theory_table
from analysis.study import StudyResults, open_study
from analysis.tables import aligned

OF_FIT: dict[str, Callable[[Fitted], pd.DataFrame]] = {
    "step_time": step_time_table,
    "prediction": prediction_table,
    "fresh": fresh_table,
    "theory": theory_table,
}
PARTS = ("schedule", *OF_FIT)
SHARES = (
    "error",
    "low",
    "high",
    "rms",
    "bias",
    "bias_corrected",
    "request_median",
    "request_p90",
    "machine_spread",
    "bar",
)


def fidelity(study: StudyResults, part: str, fitted: Fitted | None) -> pd.DataFrame:
    """The table of one part; all but ``schedule`` need the fit."""
    if part == "schedule":
        return schedule_table(study)
    if fitted is None:
        raise ValueError(f"part {part!r} needs a fitted model")
    return OF_FIT[part](fitted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the parts asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis.fidelity", description="How faithful the simulation is.")
    parser.add_argument("results", type=Path, help="results folder of a study such as experiments/fidelity.yaml")
    parser.add_argument("--part", choices=PARTS, help="one part alone (default: all)")
    parser.add_argument(
        "--fit", default=FIT_EXPERIMENT, metavar="NAME", help="experiment that the step times are fitted to"
    )
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="write each table as PART.csv there, and source.json beside them"
    )
    options = parser.parse_args(arguments)
    try:
        study = open_study(options.results)
        parts = (options.part,) if options.part else PARTS
        fitted = fit_study(study, options.fit) if set(parts) & set(OF_FIT) else None
        if fitted is not None:
            print(f"step times: {fitted.source}; {fitted.model.misfit}")
        if options.save is not None:
            options.save.mkdir(parents=True, exist_ok=True)
            source = source_of(study) | {
                "step_times": "" if fitted is None else f"{fitted.source}; {fitted.model.misfit}"
            }
            (options.save / "source.json").write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")
        for part in parts:
            table = fidelity(study, part, fitted)
            print(f"\n{part}: {_summary(table)}")
            if len(table):
                print("\n".join(aligned(list(table.columns), _texts(table), left=(0, 1))))
            if options.save is not None:
                table.to_csv(options.save / f"{part}.csv", index=False, float_format="%.6g")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def source_of(study: StudyResults) -> dict[str, object]:
    """Where and when a study was measured."""
    meta = study.runs[0].meta
    started = (meta.get("wall_clock_anchor") or {}).get("unix_s")
    return {
        "study": str(meta.get("study", "")),
        "runs": len(study.runs),
        "measured": "" if started is None else f"{datetime.fromtimestamp(started, UTC):%Y-%m-%d}",
        "machine": dict(meta.get("machine") or {}),
    }


def _summary(table: pd.DataFrame) -> str:
    if not len(table):
        return "nothing in this study to say it of"
    if "outcome" not in table:
        return f"{len(table)} rows"
    counts = table["outcome"].value_counts()
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _texts(table: pd.DataFrame) -> list[list[str]]:
    return [[_text(name, value) for name, value in zip(table.columns, row, strict=True)] for row in table.to_numpy()]


def _text(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if value != value:
        return ""
    if name in SHARES:
        return f"{100 * value:+.2f} %" if name not in ("rms", "bar", "machine_spread") else f"{100 * value:.2f} %"
    return f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
