"""Observed facts for run.json: versions, git state, machine, load. Nothing here is interpreted."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "latency-lab",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
    "simpy",
    "hdrhistogram",
)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages a result depends on; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether the tree differs from it; None outside a checkout."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system."""
    processor = platform.processor()
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            processor = next(
                (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor
            )
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def load_state() -> dict[str, float]:
    """Load average, the seconds of processor time taken by other guests (steal) since boot, and the seconds that this
    thread was ready to run and had no processor since it began (nan where the system doesn't count them)."""
    steal = getattr(psutil.cpu_times(), "steal", 0.0)
    return {"load_1min": os.getloadavg()[0], "steal_s": steal, "run_delay_s": _run_delay_s()}


def _run_delay_s() -> float:
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return math.nan


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
