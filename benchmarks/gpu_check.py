"""Everything about the engine that wants a GPU, in one command of less than 8 minutes, without a download.

    python -m benchmarks.gpu_check [--out gpu_check.json] [--only PART ...] [--dry]

Parts, each in a process of its own under a time budget, so that one that fails or hangs takes nothing with it: *limits*
(copy bandwidth, matrix peak, launches), *large* and *small* (Qwen3-8B and Qwen3-0.6B shapes with random weights: decode
steps as a share of the bandwidth bound, captured and eager, prefill as a share of the matrix peak, host overhead, tokens/s on
nano-vllm's workload), *tests* (``pytest -m gpu``), *peer* (transformers' continuous batching on the same requests),
*attentions* (each back end). Rows are written as they are known; what is there at the end is one table and one JSON file.

``--dry`` runs all of it on tiny shapes on a CPU, the kernels in Triton's interpreter: for the code, not for the numbers.

Targets on an H200: 8B shape, 32 rows, context 1,024: at least 70 % of the bound; host overhead at most 0.3 ms a step;
at least 5 times transformers' continuous batching.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

TOTAL_S = 470.0
BUDGETS = {"limits": 40, "large": 140, "small": 110, "tests": 110, "peer": 80, "attentions": 100}
ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every part ran to its end; 1: a part failed or ran out of time (its rows so far are in the table)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the rows go (JSON)")
    parser.add_argument("--only", nargs="+", choices=list(BUDGETS), default=list(BUDGETS), help="these parts alone")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, to try the code")
    parser.add_argument("--part", choices=list(BUDGETS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        return run_part(options.part, options.out, options.dry)
    return run_all(options.only, options.out, options.dry)


def run_all(parts: list[str], out: Path, dry: bool) -> int:
    """Run the parts one after another and write ``out`` after each."""
    started = time.monotonic()
    report: Row = {"machine": machine(), "dry": dry, "parts": {}}
    rows_file = out.with_suffix(".rows")
    rows_file.unlink(missing_ok=True)
    failed = False
    for part in parts:
        left = TOTAL_S - (time.monotonic() - started)
        begun = time.monotonic()
        budget = 600.0 if dry else min(float(BUDGETS[part]), left)
        state = "no time left" if budget <= 5.0 else run_in_process(part, rows_file, dry, budget)
        failed |= state != "done"
        report["parts"][part] = {"state": state, "seconds": round(time.monotonic() - begun, 1)}
        report["rows"] = read_rows(rows_file)
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{part}: {state}, {report['parts'][part]['seconds']} s", flush=True)
    print(table(report))
    rows_file.unlink(missing_ok=True)
    return int(failed)


def run_in_process(part: str, rows: Path, dry: bool, budget: float) -> str:
    """Run one part; ``done``, or what went wrong."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--part", part, "--out", str(rows)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if dry:
        command.append("--dry")
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=budget)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return f"out of time after {budget:.0f} s"
    return "done" if code == 0 else f"failed with exit code {code}"


def run_part(part: str, rows: Path, dry: bool) -> int:
    """The body of a part's process: append its rows to ``rows`` as they are known."""
    if part == "tests":
        return run_tests(rows, dry)
    with rows.open("a") as file:
        for row in rows_of(part, {row["what"]: row["value"] for row in read_rows(rows)}, dry):
            print(line(row), flush=True)
            file.write(json.dumps({"part": part, **row}) + "\n")
            file.flush()
    return 0


def rows_of(part: str, known: dict[str, float], dry: bool) -> Iterator[Row]:
    """The rows of ``part``; ``known`` are values of earlier rows. Without the *limits* they are measured first."""
    from benchmarks import gpu_parts

    scale = gpu_parts.DRY if dry else gpu_parts.REAL
    if part == "limits":
        yield from gpu_parts.limits(scale)
        return
    if part in ("large", "small"):
        if "copy bandwidth" not in known:
            known = {row["what"]: row["value"] for row in gpu_parts.limits(scale)}
        yield from gpu_parts.decode_and_prefill(scale, scale.large if part == "large" else scale.small, known)
    elif part == "peer":
        yield from gpu_parts.peer(scale, scale.small)
    else:
        yield from gpu_parts.attentions(scale, scale.small)


def run_tests(rows: Path, dry: bool) -> int:
    """``pytest -m gpu``; in a dry run the tests are only collected."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command + ["--collect-only"] * dry, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-6000:] + done.stderr[-2000:])
    last = next((text for text in reversed(done.stdout.splitlines()) if text.strip()), "nothing said")
    with rows.open("a") as file:
        row = {"part": "tests", "what": "pytest -m gpu", "value": done.returncode, "unit": "exit code", "of": last}
        file.write(json.dumps(row) + "\n")
    return done.returncode


def read_rows(file: Path) -> list[Row]:
    """The rows written so far; one that a killed part left unfinished is skipped."""
    rows: list[Row] = []
    for text in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return rows


def machine() -> Row:
    """Versions and names, without loading torch's CUDA part in this process."""
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    packages = {name: of(name) for name in ("torch", "triton", "transformers", "flash-attn")}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        gpu = ""
    return {"python": platform.python_version(), **packages, "gpu": gpu or None}


def table(report: Row) -> str:
    """The rows as text, under the machine's line."""
    facts = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    dry = ["DRY RUN: these numbers mean nothing."] if report["dry"] else []
    states = [f"{part}: {each['state']} ({each['seconds']} s)" for part, each in report["parts"].items()]
    return "\n".join(["", *dry, facts, "", *(line(row) for row in report.get("rows", [])), "", *states])


def line(row: Row) -> str:
    """One row as text."""
    value = "-" if row["value"] is None else f"{row['value']:,.6g}"
    share = f"{row['share']:6.1%} of " if row.get("share") is not None else ""
    eager = f"; eager {row['eager_ms']:.2f} ms" if "eager_ms" in row else ""
    return f"{row['what']:<64} {value:>12} {row['unit']:<10} {share}{row.get('of', '')}{eager}"


if __name__ == "__main__":
    sys.exit(main())
