"""A finished study becomes statements: ``report.html``, ``summary.csv``, figures, LaTeX tables, histograms, and an
``analysis.json`` in each run.

``python -m analysis.report RESULTS`` does it again at any time from what was recorded. Nothing that was measured is touched.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.capacity import Capacity, Drift
from analysis.compare import compare_study
from analysis.figures.study import study_figures
from analysis.figures.style import Drawn
from analysis.hdr import Histogram
from analysis.latex import comparison_table, summary_table
from analysis.report_page import StudyFacts, render
from analysis.report_text import summary_text
from analysis.runs import Run
from analysis.study import StudyResults, name_of, open_study
from analysis.summary import QUANTILES, RunSummary, latencies, summarize, write_analysis

HISTOGRAMS = ("ttft", "e2e")


@dataclass(frozen=True)
class StudyReport:
    """``text`` to print, ``html`` the page's path, ``failures`` the verdicts that failed (for ``--strict``)."""

    text: str
    html: Path
    failures: list[str]


def report_study(results: str | Path) -> StudyReport:
    """Analyse the folder of a study and write what is concluded into it.

    Raises:
        ValueError: the folder holds no measured run.
        OSError: the folder can't be written.
    """
    study = open_study(results)
    runs, summaries, failures = _summaries(study)
    comparison = compare_study(study)
    loads = [load_of(study, run, summary) for run, summary in zip(runs, summaries, strict=True)]
    for run, summary, load in zip(runs, summaries, loads, strict=True):
        rows = comparison[comparison["run"] == summary.name]
        write_analysis(run, summary, {"load": load, "compare": rows.to_dict("records")})
    _write_csv(study.path / "summary.csv", summaries, loads)
    _write_histograms(study.path / "hdr", runs, summaries)
    failures += [failure for summary in summaries for failure in summary.failures]
    failures += [
        f"calibration {calibration.label}: drifted by {calibration.drift.ratio:+.1%}"
        for calibration in study.calibrations
        if isinstance(calibration.drift, Drift) and calibration.drift.drifted
    ]
    text = summary_text(summaries, loads, study.calibrations, comparison)
    if any(run.meta.get("simulated") for run in runs):
        text = f"simulated, not measured\n{text}"
    figures = study_figures(study, runs, summaries)
    _write_figures(study.path / "figures", figures)
    _write_tables(study.path / "tables", summary_table(summaries, loads), comparison_table(comparison))
    page = study.path / "report.html"
    page.write_text(render(StudyFacts(study, runs, summaries, loads, comparison, failures, figures)), encoding="utf-8")
    return StudyReport(text, page, failures)


def load_of(study: StudyResults, run: Run, summary: RunSummary) -> tuple[float, float]:
    """Planned and realised load: arrivals a second over the capacity of the run's mix (nan where that is not known)."""
    calibration = study.calibration_of(run)
    capacity = calibration.capacity if calibration is not None else None
    if not isinstance(capacity, Capacity):
        return math.nan, math.nan
    return summary.load.planned / capacity.rate, summary.load.offered / capacity.rate


def _summaries(study: StudyResults) -> tuple[list[Run], list[RunSummary], list[str]]:
    runs, summaries, failures = [], [], []
    for run in study.runs:
        try:
            summary = summarize(run)
        except ValueError as reason:  # a run that broke off before anything was measured
            failures.append(f"{name_of(run)}: {run.status}, not analysed: {reason}")
            continue
        runs.append(run)
        summaries.append(summary)
    if not summaries:
        raise ValueError(f"{study.path}: no run can be analysed: " + "; ".join(failures))
    return runs, summaries, failures


def _write_csv(path: Path, summaries: Sequence[RunSummary], loads: Sequence[tuple[float, float]]) -> None:
    """One row a run; latencies in seconds, empty where they may not be shown."""
    rows = []
    for summary, (planned, realised) in zip(summaries, loads, strict=True):
        row: dict[str, Any] = {
            "experiment": summary.experiment,
            "point": summary.point,
            "replication": summary.replication,
            "status": summary.status,
            "arrived": summary.measured.arrived,
            "finished": summary.measured.finished,
            "refused": summary.measured.refused,
            "failed": summary.measured.failed,
            "aborted": summary.measured.aborted,
            "in_flight": summary.measured.in_flight,
            "load_planned": planned,
            "load_realised": realised,
            "offered_per_s": summary.load.offered,
            "accepted_per_s": summary.load.accepted,
            "completed_per_s": summary.load.completed,
            "stability": summary.stability.verdict,
            "stability_z": summary.stability.z,
            "little": summary.little.verdict,
            "little_remainder_share": summary.little.closure.remainder_share,
            "lag_p99_s": summary.lag.get("p99_s"),
            "occupancy": summary.occupancy,
            "busy": summary.busy,
        }
        for metric in ("ttft", "tpot", "e2e"):
            latency = getattr(summary, metric)
            row[f"{metric}_n"] = latency.n
            row[f"{metric}_mean_s"] = latency.sample_mean
            row |= {f"{metric}_p{100 * q:g}_s": latency.shown(q) for q in QUANTILES}
        if summary.slo is not None:
            row |= {"slo_share": summary.slo.share, "goodput_per_s": summary.slo.goodput, "slo": summary.slo.verdict}
        rows.append(row)
    pd.DataFrame(rows).to_csv(path, index=False)


def _write_figures(folder: Path, figures: Sequence[Drawn]) -> None:
    """Each figure of the page as SVG, PDF and CSV; what an earlier report left there goes first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for figure in figures:
        figure.write(folder)


def _write_tables(folder: Path, summary: str, comparison: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.tex").write_text(summary, encoding="utf-8")
    (folder / "compare.tex").write_text(comparison, encoding="utf-8")


def _write_histograms(folder: Path, runs: Sequence[Run], summaries: Sequence[RunSummary]) -> None:
    """``hdr/<experiment>/<point>.<metric>.hgrm``, the replications of a point merged; unstable runs have none."""
    merged: dict[Path, Histogram] = {}
    for run, summary in zip(runs, summaries, strict=True):
        if not summary.stable:
            continue
        durations = latencies(run)
        for metric in HISTOGRAMS:
            path = folder / summary.experiment / f"{summary.point}.{metric}.hgrm"
            values = durations[metric]
            merged.setdefault(path, Histogram()).record(values[~np.isnan(values)])
    for path, histogram in merged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        histogram.write_hgrm(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code (1: a verdict failed and ``--strict``; 2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Analyse a recorded study again.")
    parser.add_argument("results", type=Path, help="a results folder")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a verdict failed")
    options = parser.parse_args(arguments)
    try:
        report = report_study(options.results)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report.text)
    print(f"report: {report.html}")
    if options.strict and report.failures:
        print("failed verdicts: " + "; ".join(report.failures), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
