"""A finished study becomes statements: ``report.html``, ``report.pdf``, ``summary.csv``, figures, LaTeX tables, histograms,
and an ``analysis.json`` in each run.

``python -m analysis.report RESULTS`` does it again at any time from what was recorded. Nothing that was measured is touched.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.capacity import Capacity, Drift
from analysis.compare import compare_study
from analysis.exports import write_csv, write_figures, write_histograms, write_tables
from analysis.figures.study import study_figures
from analysis.figures.style import SCREEN, STYLES, Style
from analysis.methods import methods
from analysis.report_facts import StudyFacts, sentences
from analysis.report_page import render
from analysis.report_pdf import write_pdf
from analysis.report_text import summary_text
from analysis.report_verdicts import verdicts
from analysis.runs import Run
from analysis.study import StudyResults, known_queue_of, name_of, open_study
from analysis.summary import RunSummary, summarize, write_analysis


@dataclass(frozen=True)
class StudyReport:
    """``text`` to print, ``html`` the page's path, ``failures`` the verdicts that failed (for ``--strict``)."""

    text: str
    html: Path
    failures: list[str]


def report_study(results: str | Path, style: str | None = None) -> StudyReport:
    """Analyse the folder of a study and write what is concluded into it.

    Args:
        results: the folder.
        style: how figures are drawn, ``screen`` or ``paper``; default: what the study's ``outputs`` says, else ``screen``.

    Raises:
        ValueError: the folder holds no measured run, or there is no such style.
        OSError: the folder can't be written.
    """
    study = open_study(results)
    chosen = style_of(study, style)
    runs, summaries, failures = _summaries(study)
    comparison = compare_study(study)
    loads = [load_of(study, run, summary) for run, summary in zip(runs, summaries, strict=True)]
    for run, summary, load in zip(runs, summaries, loads, strict=True):
        rows = comparison[comparison["run"] == summary.name]
        write_analysis(run, summary, {"load": load, "compare": rows.to_dict("records")})
    failures += [failure for summary in summaries for failure in summary.failures]
    failures += [
        f"calibration {calibration.label}: drifted by {calibration.drift.ratio:+.1%}"
        for calibration in study.calibrations
        if isinstance(calibration.drift, Drift) and calibration.drift.drifted
    ]
    text = summary_text(summaries, loads, study.calibrations, comparison)
    if any(run.meta.get("simulated") for run in runs):
        text = f"simulated, not measured\n{text}"
    figures = study_figures(study, runs, summaries, comparison, chosen)
    facts = StudyFacts(study, runs, summaries, loads, comparison, failures, figures, chosen.name)
    page = study.path / "report.html"
    page.write_text(render(facts), encoding="utf-8")
    _write_beside(facts, text)
    return StudyReport(text, page, failures)


def _write_beside(facts: StudyFacts, text: str) -> None:
    """Everything for use elsewhere: PDF, CSV, histograms, figures, tables."""
    folder, said = facts.study.path, methods(facts.study, facts.summaries, facts.comparison)
    write_csv(folder / "summary.csv", facts.summaries, facts.loads)
    write_histograms(folder / "hdr", facts.runs, facts.summaries)
    write_figures(folder / "figures", facts.figures)
    write_tables(folder / "tables", facts.summaries, facts.loads, facts.comparison, said)
    judged = [f"{verdict.sign} {verdict.topic}: {verdict.words}" for verdict in verdicts(facts)]
    sections = [("What was run", sentences(facts)), ("Verdicts", judged), ("Methods", said)]
    title = f"Latency Lab: {facts.study.name}"
    write_pdf(folder / "report.pdf", title, sections, text.splitlines(), facts.figures)


def style_of(study: StudyResults, wanted: str | None) -> Style:
    """The style asked for, or the one that the study's runs were recorded with.

    Raises:
        ValueError: there is none of that name.
    """
    recorded = (study.runs[0].meta.get("outputs") or {}).get("style")
    name = wanted or str(recorded or SCREEN.name)
    if name not in STYLES:
        raise ValueError(f"no style is called {name!r}; there are {', '.join(STYLES)}")
    return STYLES[name]


def load_of(study: StudyResults, run: Run, summary: RunSummary) -> tuple[float, float]:
    """Planned and realised load: arrivals a second over the capacity of the run's mix (nan where that is not known)."""
    if known_queue_of(run) is not None:
        rate = float(run.meta["engine"]["capacity"])
        return summary.load.planned / rate, summary.load.offered / rate
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code (1: a verdict failed and ``--strict``; 2: bad input)."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Analyse a recorded study again.")
    parser.add_argument("results", type=Path, help="a results folder")
    parser.add_argument("--style", choices=sorted(STYLES), help="of the figures (default: what the study says)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a verdict failed")
    options = parser.parse_args(arguments)
    try:
        report = report_study(options.results, options.style)
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
