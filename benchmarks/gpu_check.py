"""Everything about the engine that wants a GPU, in one command of less than 8 minutes, without a download.

    python -m benchmarks.gpu_check [--out gpu_check.json] [--only PART ...] [--dry]

Parts, the most important first, each in a process of its own, so that one that fails or hangs takes nothing with it. A
part may take its own seconds and what the parts before it have left of theirs: together they stay under 8 minutes, and a
slow one cannot starve those after it. Rows are written as they are known; what is there at the end is one table and one
JSON file, with an outcome for every part.

``--dry`` runs all of it on tiny shapes on a CPU, the kernels in Triton's interpreter: for the code, not for the numbers.

Targets on an H200: 8B shape, 32 rows, context 1,024: at least 70 % of the bound; host overhead at most 0.3 ms a step;
at least 5 times transformers' continuous batching.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, TextIO

Row = dict[str, Any]


class Part(NamedTuple):
    """``seconds`` that it has in any case, and the packages that it needs beyond those of the engine."""

    seconds: int
    what: str
    needs: tuple[str, ...] = ("triton",)


PARTS = {
    "limits": Part(40, "copy bandwidth, matrix peak, launches", ()),
    "tests": Part(105, "pytest -m gpu", ("pytest", "triton")),
    "decode": Part(75, "Qwen3-8B shape: decode steps against the bandwidth bound, captured and eager"),
    "workload": Part(45, "Qwen3-0.6B shape: tokens/s on nano-vllm's workload"),
    "small": Part(45, "Qwen3-0.6B shape: launch floor, decode steps, host overhead, prefill"),
    "attentions": Part(60, "each attention back end on the same requests"),
    "large": Part(60, "Qwen3-8B shape: prefill against the matrix peak, host overhead, tokens/s"),
    "peer": Part(40, "transformers' continuous batching on the same requests", ("triton", "transformers")),
}
TOTAL_S = 472.0
ENGINE_NEEDS = ("torch", "numpy", "pyarrow", "rich", "tokenizers", "jinja2", "filelock")
NO_GPU, OUT_OF_TIME = 3, 124  # exit codes of a part
LEAST_S = 8.0  # with less a part would not get beyond its imports
ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every part ran to its end; 1: one failed, ran out of time or was not run (the table says which)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the rows go (JSON)")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="these parts alone")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, to try the code")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        return run_part(options.part, options.out, options.dry, options.seconds)
    return run_all([part for part in PARTS if part in options.only], options.out, options.dry)


def run_all(parts: list[str], out: Path, dry: bool) -> int:
    """Run the parts one after another and write ``out`` after each."""
    started = time.monotonic()
    report: Row = {"machine": machine(), "dry": dry, "parts": {}, "rows": []}
    rows_file = out.with_suffix(".rows")
    rows_file.unlink(missing_ok=True)
    for part, reason in missing(parts).items():
        print(f"{part} cannot run here: {reason}", flush=True)
    for i, part in enumerate(parts):
        begun = time.monotonic()
        seconds = 900.0 if dry else allowance(parts[i:], TOTAL_S - (begun - started))
        state = missing([part]).get(part) or run_in_process(part, rows_file, dry, seconds)
        report["parts"][part] = {
            "state": state,
            "seconds": round(time.monotonic() - begun, 1),
            "what": PARTS[part].what,
        }
        report["rows"] = read_rows(rows_file)
        out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{part}: {state}, {report['parts'][part]['seconds']} s", flush=True)
    print(table(report))
    rows_file.unlink(missing_ok=True)
    return int(any(each["state"] != "done" for each in report["parts"].values()))


def allowance(parts: list[str], left: float) -> float:
    """Seconds for the first of ``parts`` when ``left`` are left for them all: all but what the others have in any case."""
    return left - sum(PARTS[part].seconds for part in parts[1:])


def missing(parts: list[str]) -> dict[str, str]:
    """Of those of ``parts`` that cannot run on this machine: why."""
    found = {part: [name for name in (*ENGINE_NEEDS, *PARTS[part].needs) if find_spec(name) is None] for part in parts}
    return {part: f"not run: without {', '.join(names)}" for part, names in found.items() if names}


def run_in_process(part: str, rows: Path, dry: bool, seconds: float) -> str:
    """Run one part; ``done``, or what went wrong."""
    if seconds < LEAST_S:
        return "not run: out of time"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--part", part, "--out", str(rows.resolve())]
    command += ["--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if dry:
        command.append("--dry")
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"out of time after {seconds:.0f} s"
    finally:
        with suppress(ProcessLookupError):  # whatever it started ends with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code == OUT_OF_TIME:
        return f"out of time after {seconds:.0f} s"
    if code == NO_GPU:
        return "not run: torch finds no CUDA device (--dry tries the code on a CPU)"
    return "done" if code == 0 else f"failed with exit code {code}"


def run_part(part: str, rows: Path, dry: bool, seconds: float) -> int:
    """The body of a part's process: append its rows to ``rows`` as they are known."""
    import torch

    if not dry and not torch.cuda.is_available():
        return NO_GPU
    if part == "tests":
        return run_tests(rows, dry, seconds - LEAST_S)
    known = {row["what"]: row["value"] for row in read_rows(rows)}
    with rows.open("a") as file:
        for row in rows_of(part, known, dry):
            print(line(row), flush=True)
            write_row(file, {"part": part, **row})
    return 0


def rows_of(part: str, known: dict[str, float], dry: bool) -> Iterator[Row]:
    """The rows of ``part``; ``known`` are values of earlier rows. Without the *limits* they are measured first."""
    from benchmarks import gpu_parts

    scale = gpu_parts.DRY if dry else gpu_parts.REAL
    if part == "limits":
        yield from gpu_parts.limits(scale)
        return
    if part in ("decode", "small", "large") and "launch in a graph" not in known:
        for row in gpu_parts.limits(scale):
            known[row["what"]] = row["value"]
            yield row
    run = {
        "decode": lambda: gpu_parts.decodes(scale, scale.large, known),
        "workload": lambda: gpu_parts.workloads(scale, scale.small),
        "small": lambda: gpu_parts.small(scale, scale.small, known),
        "attentions": lambda: gpu_parts.attentions(scale, scale.small),
        "large": lambda: gpu_parts.large(scale, scale.large, known),
        "peer": lambda: gpu_parts.peer(scale, scale.small),
    }
    yield from run[part]()


def run_tests(rows: Path, dry: bool, seconds: float) -> int:
    """``pytest -m gpu``, several at a time where pytest-xdist is installed; in a dry run the tests are only collected."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "--confcutdir=tests/gpu"]
    if find_spec("xdist") and not dry:
        command += ["-n", "6"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2"}
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "tests/gpu", *["--collect-only"] * dry], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = OUT_OF_TIME
        log.seek(0)
        output = log.read()
    print(output[-8000:])
    if code == OUT_OF_TIME:
        counts = Counter(re.findall(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b", output))
        said = ", ".join(["out of time", *(f"{n} {name.lower()}" for name, n in counts.items())])
    else:
        said = next((text for text in reversed(output.splitlines()) if text.strip()), "nothing said").strip("= ")
    with rows.open("a") as file:
        row = {"what": "pytest -m gpu", "value": code, "unit": "exit code", "of": said}
        write_row(file, {"part": "tests", **row})
    return code


def write_row(file: TextIO, row: Row) -> None:
    """Begins with the line break: what a killed part left unfinished stays a line of its own."""
    file.write("\n" + json.dumps(row))
    file.flush()


def read_rows(file: Path) -> list[Row]:
    """The rows written so far; one that a killed part left unfinished is skipped."""
    rows: list[Row] = []
    for text in file.read_text().splitlines() if file.exists() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(text))
    return rows


def machine() -> Row:
    """Versions and names, without loading torch in this process."""

    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    packages = {name: of(name) for name in ("torch", "triton", "transformers", "flash-attn")}
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        gpu = ""
    return {"python": platform.python_version(), **packages, "gpu": gpu or None}


def table(report: Row) -> str:
    """The rows as text, under the machine's line."""
    facts = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    dry = ["DRY RUN: these numbers mean nothing."] if report["dry"] else []
    states = [
        f"{part} ({each['what']}): {each['state']}, {each['seconds']} s" for part, each in report["parts"].items()
    ]
    return "\n".join(["", *dry, facts, "", *(line(row) for row in report["rows"]), "", *states])


def line(row: Row) -> str:
    """One row as text."""
    value = "-" if row["value"] is None else f"{row['value']:,.6g}"
    share = f"{row['share']:6.1%} of " if row.get("share") is not None else ""
    eager = f"; eager {row['eager_ms']:.2f} ms" if "eager_ms" in row else ""
    return f"{row['what']:<64} {value:>12} {row['unit']:<10} {share}{row.get('of', '')}{eager}"


if __name__ == "__main__":
    sys.exit(main())
