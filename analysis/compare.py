"""Measured runs against models: one row for each statement, with what was assumed, predicted, measured and concluded.

``python -m analysis.compare RESULTS`` prints the table of a study, the replications of a point pooled behind their runs; with
a second folder it prints how the two differ, run by run, with the requests paired. ``--csv`` and ``--json`` write either.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.capacity import Drift
from analysis.fit.step_time import StepTimeModel
from analysis.paired import paired_differences, point_of
from analysis.predictions import bursts, closed, first_token, known_queue, one_seat, sharing, simulated, static_batch
from analysis.predictions.base import BAND, FAMILYWISE, TOO_COARSE, Prediction, judge
from analysis.predictions.pooled import pool
from analysis.runs import Run
from analysis.stability import stability
from analysis.study import StudyResults, known_queue_of, name_of, open_study
from analysis.tables import aligned

COLUMNS = (
    "run",
    "model",
    "quantity",
    "unit",
    "assumptions",
    "prediction",
    "low",
    "high",
    "measured",
    "error",
    "detectable",
    "scatter",
    "p_value",
    "n",
    "verdict",
    "note",
)


@dataclass(frozen=True)
class Facts:
    """What models may know beside the run: the step-time model of its execution, and how steady the machine was."""

    step_time: StepTimeModel | None
    speed_change: float | None  # of the capacity, from before the sweep to after it


MODELS: dict[str, Callable[[Run, Facts], list[Prediction]]] = {
    "mg1": lambda run, facts: one_seat.mg1(run),
    "lindley": lambda run, facts: one_seat.lindley(run),
    "gg1": lambda run, facts: bursts.gg1(run),
    "mmpp1": lambda run, facts: bursts.mmpp1(run),
    "ps": lambda run, facts: sharing.ps(run, facts.step_time),
    "limited-ps": lambda run, facts: sharing.limited_ps(run, facts.step_time),
    "ttft": lambda run, facts: first_token.ttft(run, facts.step_time),
    "batch-service": lambda run, facts: static_batch.batch_service(run, facts.step_time),
    "closed": lambda run, facts: closed.closed(run, facts.step_time),
    "saturation": lambda run, facts: closed.saturation(run, facts.step_time, facts.speed_change),
    "mm1": lambda run, facts: known_queue.mm1(run),
    "md1": lambda run, facts: known_queue.md1(run),
    "mmc": lambda run, facts: known_queue.mmc(run),
    "simulation": lambda run, facts: simulated.simulation(run, facts.step_time, facts.speed_change),
}
OF_KNOWN_QUEUES = ("mm1", "md1", "mmc")  # the others speak of engines
OF_OVERLOAD = ("saturation",)  # speak of a run whose backlog grows


def compare(run: Run, models: Sequence[str] | None = None, study: StudyResults | None = None) -> pd.DataFrame:
    """One row for each model and quantity.

    Columns: run, model, quantity, unit, assumptions (each with what was found), prediction, low and high (where 99 % of
    runs of this length would lie if the model were true), measured, error (prediction over measurement, minus 1),
    detectable (smallest deviation, as a share of the prediction, that this run would notice with probability .9), scatter
    (median relative error of a request, for models that speak of each), p_value, n, verdict, note. The verdicts of one
    table share 1 % (Holm).

    Args:
        models: names out of ``MODELS``; default: those that the run's spec lists under ``compare``, else all that speak of
            its kind of target.
        study: where calibrations are looked for; default: the results folder that the run lies in.

    Raises:
        ValueError: an unknown model.
    """
    return to_table([(name_of(run), row) for row in judge(predict(run, models, study))])


def compare_study(study: StudyResults, models: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of all runs, each against ``models`` or what its spec lists; the verdicts of the study share 1 %.

    Behind the replications and repeats of a point stand the rows of all of them together (``pooled``).
    """
    named = [
        (run, (run.meta.get("spec") or {}).get("compare") or () if models is None else models) for run in study.runs
    ]
    points: dict[str, dict[str, list[list[Prediction]]]] = {}
    rows: list[tuple[str, Prediction]] = []
    for run, names in named:
        found = predict(run, names, study)
        rows += [(name_of(run), row) for row in found]
        points.setdefault(point_of(run), {}).setdefault(str(run.meta.get("replication")), []).append(found)
    for point, replications in points.items():
        number = sum(len(runs) for runs in replications.values())
        if number > 1 and len({len(found) for runs in replications.values() for found in runs}) == 1:
            each = [pool(runs, repeats=True) if len(runs) > 1 else runs[0] for runs in replications.values()]
            rows += [(f"{point} (all {number})", row) for row in (pool(each) if len(each) > 1 else each[0])]
    # One run's check is no other run's: names keep them apart while they are judged together.
    apart = [replace(row, model=f"{name}\n{row.model}") for name, row in rows]
    judged = [replace(row, model=row.model.split("\n")[1]) for row in judge(apart)]
    return to_table([(name, row) for (name, _), row in zip(rows, judged, strict=True)])


def predict(run: Run, models: Sequence[str] | None = None, study: StudyResults | None = None) -> list[Prediction]:
    """What each model says about the run, not judged yet."""
    known = known_queue_of(run) is not None
    fitting = [name for name in MODELS if (name in OF_KNOWN_QUEUES) is known]
    names = list(models) if models is not None else list((run.meta.get("spec") or {}).get("compare") or fitting)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ValueError(f"no model is called {', '.join(map(repr, unknown))}; there are {', '.join(MODELS)}")
    if run.status != "complete":
        return [Prediction(name, "averages", "s", refused=f"not applicable: the run is {run.status}") for name in names]
    where = study if study is not None else study_around(run)
    facts = _facts(run, where) if where is not None else Facts(None, None)
    unstable = stability(run).verdict == "unstable"
    found: list[Prediction] = []
    for name in names:
        if unstable and name not in OF_OVERLOAD:
            found.append(Prediction(name, "averages", "s", refused="unstable"))
        else:
            found += MODELS[name](run, facts)
    return found


def _facts(run: Run, study: StudyResults) -> Facts:
    calibration = study.calibration_of(run)
    change = calibration.drift if calibration is not None else None
    return Facts(study.step_time_of(run), change.ratio if isinstance(change, Drift) else None)


def study_around(run: Run) -> StudyResults | None:
    """The results folder that a recorded run lies in: the nearest one above it that holds calibrations."""
    if run.path is None:
        return None
    parents = run.path.resolve().parents
    return next((open_study(folder) for folder in parents[:4] if (folder / "calibration").is_dir()), None)


def to_table(rows: Sequence[tuple[str, Prediction]]) -> pd.DataFrame:
    """Judged predictions as a table of ``COLUMNS``."""
    found = [
        (
            name,
            row.model,
            row.quantity,
            row.unit,
            "; ".join(f"{check.assumption}: {check.finding}" for check in row.checks),
            row.predicted,
            row.band.low if row.band is not None else math.nan,
            row.band.high if row.band is not None else math.nan,
            row.measured,
            row.error,
            row.detectable,
            row.scatter if row.scatter is not None else math.nan,
            row.band.p_value if row.band is not None else math.nan,
            row.n,
            row.verdict,
            row.note,
        )
        for name, row in rows
    ]
    return pd.DataFrame(found, columns=list(COLUMNS))


def as_text(table: pd.DataFrame) -> str:
    """The comparison for a terminal: milliseconds, percent, verdict last."""
    if table.empty:
        return "no run names a model to be compared with"
    header = ["run", "model", "quantity", "n", "measured", "predicted", f"{BAND:.0%} band", "error", "notices"]
    rows = []
    silent = table["verdict"].str.startswith("not applicable")
    for row in table[~silent].to_dict("records"):
        in_unit = _ms if row["unit"] == "s" else _per_second
        band = "-" if math.isnan(row["low"]) else f"{in_unit(row['low'])} to {in_unit(row['high'])}"
        quantity = row["quantity"] if row["unit"] == "s" else f"{row['quantity']}, {row['unit']}"
        cells = [row["run"], row["model"], quantity, str(row["n"] or "-"), in_unit(row["measured"])]
        rows.append([*cells, in_unit(row["prediction"]), band, _percent(row["error"]), _percent(row["detectable"])])
    lines = aligned(header, rows, left=(0, 1, 2))
    legend = (
        "times in ms; band: where runs of this length would lie if the model were true; notices: smallest deviation seen "
        f"with probability .9,\nabove {TOO_COARSE:.0%} a run is too short to agree; all verdicts together err with "
        f"probability {FAMILYWISE:.0%} (Holm)"
    )
    verdicts = [_verdict_line(row) for row in table[~silent].to_dict("records")]
    kept_silent = [
        f"  {model}: {verdict} ({rows['run'].nunique()} run{'s' if rows['run'].nunique() > 1 else ''})"
        for (model, verdict), rows in table[silent].groupby(["model", "verdict"], sort=False)
    ]
    return "\n".join([*(lines if rows else []), *([legend] if rows else []), *verdicts, *kept_silent])


def _verdict_line(row: dict[Any, Any]) -> str:
    verdict = str(row["verdict"])
    if verdict == "too short" and not math.isnan(row["detectable"]):
        verdict += f": would notice {row['detectable']:.0%}"
    return f"  {row['run']}: {row['model']}, {row['quantity']}: {verdict}"


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e3 * seconds:.1f}"


def _per_second(rate: float) -> str:
    return "-" if math.isnan(rate) else f"{rate:.3f}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:+.1f} %"


def to_json(table: pd.DataFrame) -> str:
    """The rows as JSON: a list of objects with the table's columns, seconds and shares; what is not known is null."""
    rows = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in table.to_dict("records")
    ]
    return json.dumps(rows, indent=1, allow_nan=False, default=lambda value: value.item()) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code (2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m analysis.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a results folder")
    parser.add_argument("other", type=Path, nargs="?", help="a second one, whose runs are paired with the first's")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="models (default: those the study names)")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(arguments)
    try:
        study = open_study(options.results)
        table: Any
        if options.other is None:
            table = compare_study(study, options.models)
            text = as_text(table)
        else:
            table = paired_differences(study, open_study(options.other))
            text = table.attrs["text"]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(text)
    if options.csv is not None:
        table.to_csv(options.csv, index=False)
    if options.json is not None:
        options.json.write_text(to_json(table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
