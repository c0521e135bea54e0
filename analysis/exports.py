"""What lies beside the page: a row a run as CSV, histograms of each point, figures with their data, tables for LaTeX."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.points import points_of
from analysis.figures.style import Drawn
from analysis.hdr import Histogram, write_hlog
from analysis.latex import comparison_table, paragraph, summary_table
from analysis.runs import Run
from analysis.summary import QUANTILES, RunSummary, latencies

HISTOGRAMS = ("ttft", "e2e")
INTERVALS = 10  # of equal length in a run's histogram log,
LEAST_INTERVAL_S = 1.0  # none of them shorter


def write_csv(path: Path, summaries: Sequence[RunSummary], loads: Sequence[tuple[float, float]]) -> None:
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
            "itl_n": summary.itl.n,
            "itl_mean_s": summary.itl.sample_mean,
            "prefix_hit_rate": summary.engine.prefix_hit_rate,
            "evictions": summary.engine.evictions,
            "preemptions": summary.engine.preemptions,
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


def write_figures(folder: Path, figures: Sequence[Drawn]) -> None:
    """Each figure of the page as SVG, PDF and CSV; what an earlier report left there goes first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for figure in figures:
        figure.write(folder)


def write_tables(
    folder: Path,
    summaries: Sequence[RunSummary],
    loads: Sequence[tuple[float, float]],
    comparison: pd.DataFrame,
    methods: Sequence[str],
) -> None:
    """``summary.tex`` and ``compare.tex``, a tabular each, and ``methods.tex``, a paragraph."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.tex").write_text(summary_table(summaries, loads), encoding="utf-8")
    (folder / "compare.tex").write_text(comparison_table(comparison), encoding="utf-8")
    (folder / "methods.tex").write_text(paragraph(methods), encoding="utf-8")


def write_histograms(folder: Path, runs: Sequence[Run], summaries: Sequence[RunSummary]) -> None:
    """``hdr/<experiment>/<point>.<metric>.hgrm``, the replications of a point merged, and ``.hlog``, the same requests by the
    stretch of time in which they were due to arrive. Unstable runs have none."""
    shutil.rmtree(folder, ignore_errors=True)
    for point in points_of(list(zip(runs, summaries, strict=True))):
        stable = [(run, summary) for run, summary in point.pairs if summary.stable]
        if not stable:
            continue
        (folder / point.experiment).mkdir(parents=True, exist_ok=True)
        for metric in HISTOGRAMS:
            whole = Histogram()
            intervals: list[Histogram] = []
            for run, summary in stable:
                for part in _intervals(run, summary, metric):
                    whole.merge(part)
                    intervals.append(part)
            file = folder / point.experiment / f"{point.point}.{metric}"
            whole.write_hgrm(file.with_name(f"{file.name}.hgrm"))
            write_hlog(file.with_name(f"{file.name}.hlog"), intervals)


def _intervals(run: Run, summary: RunSummary, metric: str) -> list[Histogram]:
    """A run's measured latencies in equal stretches of its window, on the wall clock where it was recorded."""
    values = latencies(run)[metric]
    due = np.sort(run.measured["intended_s"].to_numpy(dtype=float), kind="stable")
    start, end = summary.window
    number = int(np.clip((end - start) / LEAST_INTERVAL_S, 1, INTERVALS))
    edges = np.linspace(start, end, number + 1)
    which = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, number - 1)
    origin = float((run.meta.get("wall_clock_anchor") or {}).get("unix_s", 0.0))
    tag = f"replication-{summary.replication}" if summary.replication else None
    found = []
    for i in range(number):
        part = Histogram(origin + float(edges[i]), origin + float(edges[i + 1]), tag)
        inside = values[which == i]
        part.record(inside[~np.isnan(inside)])
        found.append(part)
    return found
