"""How long the analysis of a run of a million requests takes, part by part, and how much memory.

    python -m benchmarks.million [--requests 1000000] [--seed 1]

The run is an M/M/1 queue at load .8 with two observers, as Parquet files written by a process of their own. Meant to stay
under 20 s and 4 GB.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.arrivals import conditional_uniform_ks, dispersion_curve, gap_correlation, lewis_ks, phase
from analysis.exports import write_csv, write_histograms
from analysis.extremes import peaks_over_threshold
from analysis.littles_law import by_subwindow
from analysis.operational_laws import pasta, utilisation_law
from analysis.runs import Run, open_run
from analysis.summary import latencies, summarize, write_analysis
from analysis.tails import ccdf, decay_rate, fan_out_adjacent, mean_excess
from analysis.warmup import check_cut

LOAD = 0.8


def write_run(folder: Path, requests: int, seed: int) -> None:
    """The run as a directory."""
    from benchmarks.verdict_cases import queue  # loads what the analysis itself does not need

    run = queue(np.random.default_rng(seed), requests, LOAD).run()
    rows = run.requests
    rows["scheduled_s"] = np.maximum(rows["scheduled_s"], rows["done_s"].shift(fill_value=0.0))  # rounding aside
    rows.to_parquet(folder / "requests.parquet")
    stamps = [rows[name].to_numpy(dtype=float) for name in ("done_s", "received_s", "scheduled_s")]
    waiting, running = (np.repeat(change, requests) for change in ([0, 1, -1], [-1, 0, 1]))
    order = np.argsort(np.concatenate(stamps), kind="stable")
    gauge = {"t_s": np.concatenate(stamps)[order], "inbox": 0}
    gauge |= {"waiting": np.cumsum(waiting[order]), "running": np.cumsum(running[order])}
    pd.DataFrame(gauge).to_parquet(folder / "gauge.parquet")
    about = {"schema_version": 1, "experiment": "long", "point": f"load={LOAD:g}", "replication": 0}
    (folder / "run.json").write_text(json.dumps({**about, **run.meta}), encoding="utf-8")


def parts(folder: Path) -> dict[str, Callable[[], object]]:
    """What is done with the run, in this order; later parts use what earlier ones read."""
    run = open_run(folder)

    def arrivals() -> list[object]:
        start, end = run.window
        stamps = run.requests["intended_s"].to_numpy(dtype=float)
        tests = [test(stamps, start, end) for test in (conditional_uniform_ks, lewis_ks, dispersion_curve)]
        return [*tests, gap_correlation(stamps), phase(stamps)]

    def tails() -> list[object]:
        e2e = latencies(run)["e2e"]
        points = ccdf(e2e)[0]
        levels = np.quantile(points, np.linspace(0.5, 0.999, 50))
        fitted = [decay_rate(e2e), peaks_over_threshold(e2e), fan_out_adjacent(e2e, 10, 0.99)]
        return [mean_excess(e2e, levels), check_cut(e2e, 1000), *fitted]

    def written() -> None:
        summary = summarize(run)
        write_analysis(run, summary)
        write_histograms(folder / "hdr", [run], [summary])
        write_csv(folder / "summary.csv", [summary], [(LOAD, LOAD)])

    return {
        "tables read": lambda: [run.requests, run.gauge],
        "summary (counts, Little's law, stability, percentiles, means)": lambda: summarize(run),
        "laws (utilisation, PASTA, closure in 20 subwindows)": lambda: _laws(run),
        "arrival tests": arrivals,
        "tails and warm-up": tails,
        "the same summary, written with histograms": written,
    }


def _laws(run: Run) -> tuple[object, object, pd.DataFrame]:
    return utilisation_law(run), pasta(run), by_subwindow(run, 20)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="only write the run into this folder")
    options = parser.parse_args()
    if options.write is not None:
        write_run(options.write, options.requests, options.seed)
        return
    print(f"Python {platform.python_version()}, numpy {np.__version__}, pandas {pd.__version__}")
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.million", "--write", name]
        subprocess.run([*command, "--requests", str(options.requests), "--seed", str(options.seed)], check=True)
        began = time.perf_counter()
        for part, work in parts(Path(name)).items():
            since = time.perf_counter()
            work()
            print(f"{time.perf_counter() - since:6.2f} s  {part}", flush=True)
        total = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{total:6.2f} s  all of it, {options.requests:,} requests; at most {peak / 1e9:.2f} GB of memory")


if __name__ == "__main__":
    main()
