"""(a) Is the simulated schedule the real one, step by step? Every run of a study, calibrations too, is scheduled again."""

from __future__ import annotations

import pandas as pd

from analysis.runs import Run
from analysis.simulation.facts import EngineFacts
from analysis.simulation.schedule import replay_schedule
from analysis.study import StudyResults, name_of


def schedule_table(study: StudyResults) -> pd.DataFrame:
    """One row a run: steps compared, steps that differ, what made the schedule hard, outcome (``meets`` is: none differs)."""
    runs = [*study.runs, *(run for calibration in study.calibrations for run in calibration.runs)]
    return pd.DataFrame([_row(run) for run in runs])


def _row(run: Run) -> dict[str, object]:
    row: dict[str, object] = {"run": name_of(run)}
    try:
        compared = replay_schedule(run)
        scheduling = EngineFacts.of(run).scheduling
    except ValueError as reason:
        return {**row, "outcome": "cannot tell", "note": str(reason)}
    requests = run.requests
    sessions = requests["session_id"].dropna().astype(str)
    return {
        **row,
        "policy": scheduling["policy"],
        "seats": scheduling["max_num_seqs"],
        "kv_blocks": scheduling["num_kv_blocks"],
        "preemptions": int(run.steps["preempted"].sum()),
        "cached_tokens": int(requests["cached_tokens"].fillna(0).sum()),
        "sessions": int(sessions[~sessions.str.startswith("client-")].nunique()),
        "steps": compared.steps,
        "different": compared.different,
        "outcome": "meets" if compared.equal else "misses",
        "note": "" if compared.equal else str(compared),
    }
