"""The fidelity of a measured study as tables in a document, from what ``python -m analysis.fidelity --save`` kept of it.

python -m benchmarks.fidelity notebooks/data/fidelity --publish docs/fidelity.md [--name fidelity]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.published import markdown, publish

HEADER = ["cell", "quantity", "bar", "raw error (95 % interval)", "", "corrected error (95 % interval)", ""]


def tables_of(folder: Path) -> str:
    """What is known of the machine, the outcome of each part, and each prediction that has a bar, as Markdown."""
    source = json.loads((folder / "source.json").read_text(encoding="utf-8"))
    machine = source["machine"]
    known = f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores, {source['measured']}, {source['runs']} runs"
    parts = {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}
    counts = [[name, outcomes(table)] for name, table in parts.items() if "outcome" in table]
    text = f"{known}. Step times: {source['step_times']}.\n\n{markdown(['part', 'outcomes'], counts)}\n"
    return f"{text}\n{markdown(HEADER, prediction_rows(parts['prediction']))}\n" if "prediction" in parts else text


def outcomes(table: pd.DataFrame) -> str:
    """How often each outcome came, raw and corrected apart."""
    groups = table.groupby("kind", sort=False) if "kind" in table else [("", table)]
    counted = [
        (str(kind), ", ".join(f"{n} {outcome}" for outcome, n in rows["outcome"].value_counts().items()))
        for kind, rows in groups
    ]
    return "; ".join(f"{kind}: {text}" if kind else text for kind, text in counted)


def prediction_rows(table: pd.DataFrame) -> list[list[str]]:
    """One row for each cell and quantity with a bar and an interval."""
    kinds = {str(kind): rows.set_index(["cell", "quantity"]) for kind, rows in table.groupby("kind")}
    rows = []
    for key, raw in kinds["raw"].iterrows():
        if pd.isna(raw["bar"]) or pd.isna(raw["low"]):
            continue
        cell, quantity = key  # type: ignore[misc]
        corrected = kinds["corrected"].loc[key]
        rows.append([cell, quantity, f"{raw['bar']:.0%}", *_error(raw), *_error(corrected)])
    return rows


def _error(row: pd.Series) -> list[str]:
    return [f"{row['error']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})", str(row["outcome"])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or put them into a document; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=__doc__)
    parser.add_argument("folder", type=Path, help="what analysis.fidelity --save wrote")
    parser.add_argument("--publish", type=Path, help="a document that the tables are put into")
    parser.add_argument("--name", default="fidelity", help="of the place in the document (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        text = tables_of(options.folder)
        if options.publish is None:
            print(text)
        else:
            command = (
                f"python -m benchmarks.fidelity {options.folder} --publish {options.publish} --name {options.name}"
            )
            publish(options.publish, options.name, command, text)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
