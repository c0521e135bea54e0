"""The published fidelity tables are those of the recorded copy."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from benchmarks.fidelity import main


def test_the_tables_say_machine_outcomes_and_each_error_with_its_interval(tmp_path: Path) -> None:
    source = {
        "study": "s",
        "runs": 5,
        "measured": "2026-01-02",
        "step_times": "1 grid",
        "machine": {"processor": "P", "cores": 2},
    }
    (tmp_path / "source.json").write_text(json.dumps(source))
    row = {"cell": "loads/load=0.3", "quantity": "mean E2E", "bar": 0.02, "low": -0.01, "high": 0.012, "error": 0.001}
    rows = [
        {**row, "kind": "raw", "outcome": "meets"},
        {**row, "kind": "corrected", "error": 0.05, "outcome": "misses"},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "prediction.csv", index=False)
    document = tmp_path / "page.md"
    document.write_text("<!-- fidelity: begin -->\n<!-- fidelity: end -->\n")
    assert main([str(tmp_path), "--publish", str(document)]) == 0
    text = document.read_text()
    assert "P, 2 cores, 2026-01-02, 5 runs. Step times: 1 grid." in text
    assert "| prediction | raw: 1 meets; corrected: 1 misses |" in text
    assert "| +0.1% (-1.0% to +1.2%) | meets | +5.0% (-1.0% to +1.2%) | misses |" in text
    assert main([str(tmp_path / "nowhere")]) == 2
