"""What the notebooks share: where a study's results are, recorded beside them or measured live, with a seed for each student.

Each study of ``notebooks/studies/`` has a recorded copy in ``notebooks/data/``, so that a notebook runs in seconds without a
model. ``results("batching", live=True, student="Ada")`` measures the same study on your machine with Ada's own seed: every
student then sees other requests and other numbers, and all should reach the same conclusions.

    python notebooks/lab.py record batching      # measure a study with its own seed and replace the recorded copy
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parent
STUDIES, DATA, LIVE = NOTEBOOKS / "studies", NOTEBOOKS / "data", NOTEBOOKS.parent / "results" / "notebooks"
KEPT = ("run.json", "requests.parquet", "steps.parquet", "batch.parquet", "gauge.parquet")  # of a run, when recorded

# The colours of the figures (Okabe and Ito: colour-blind safe), and line styles to tell them apart in grey.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#59636e"


def seed_of(student: str) -> int:
    """A seed from a name: the same for the same name, on every machine."""
    return int.from_bytes(hashlib.sha256(student.encode()).digest()[:4], "big")


def results(study: str, *, live: bool = False, student: str | None = None, simulate: bool = False) -> Path:
    """The results folder of ``study``: the recorded copy, or measured now.

    Args:
        study: a file in ``notebooks/studies`` without its ending.
        live: measure (or simulate) now instead of reading the recorded copy; some minutes, with progress.
        student: whose seed a live run takes; the study's own without it.
        simulate: with ``live``: in virtual time, with the step times of the recorded copy. Needs no model.

    Raises:
        ValueError: there is no such study.
        subprocess.CalledProcessError: the live run failed; its message stands above.
    """
    file = STUDIES / f"{study}.yaml"
    if not file.exists():
        raise ValueError(
            f"no study {study!r}; there are {', '.join(sorted(path.stem for path in STUDIES.glob('*.yaml')))}"
        )
    if not live:
        return DATA / study
    seed = [] if student is None else ["--seed", str(seed_of(student))]
    out = LIVE / ("-".join([study, *([student] if student else []), *(["simulated"] if simulate else [])]))
    virtual = ["--simulate", "--calibration", str(DATA / study)] if simulate else []
    command = [sys.executable, "-m", "workload.run", str(file), "--out", str(out), "--resume", *seed, *virtual]
    subprocess.run(command, check=True, cwd=NOTEBOOKS.parent)
    return out / study


def record(study: str) -> Path:
    """Measure ``study`` with its own seed and put the tables that notebooks read into ``notebooks/data``."""
    source = results(study, live=True)
    target = DATA / study
    shutil.rmtree(target, ignore_errors=True)
    for run in source.rglob("run.json"):
        kept = target / run.parent.relative_to(source)
        kept.mkdir(parents=True)
        for name in KEPT:
            if (run.parent / name).exists():
                shutil.copy(run.parent / name, kept / name)
        # Files of the study (lengths, traces) are named by where they lie here, which is nobody else's business.
        described = (kept / "run.json").read_text(encoding="utf-8")
        (kept / "run.json").write_text(described.replace(f"{NOTEBOOKS}/", ""), encoding="utf-8")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record"])
    parser.add_argument("study")
    print(record(parser.parse_args().study))


if __name__ == "__main__":
    main()
