"""``python -m workload.importers FORMAT FILE --out DIR``: a result file of another load generator as run directories."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from workload.importers.aiperf import read_aiperf
from workload.importers.guidellm import read_guidellm
from workload.importers.imported import ForeignRun, write_run
from workload.importers.vllm_bench import read_vllm_bench

READERS: dict[str, Callable[[Path], list[ForeignRun]]] = {
    "vllm-bench": read_vllm_bench,
    "guidellm": read_guidellm,
    "aiperf": read_aiperf,
}


def import_results(format: str, file: Path, out: Path) -> list[Path]:
    """Write the runs of ``file`` to ``out/<format>/<run>/0`` and return their directories.

    Raises:
        ValueError: the format is unknown, or the file is not of it.
        FileExistsError: a run is there already.
    """
    if format not in READERS:
        raise ValueError(f"format is {format!r}; allowed: {', '.join(READERS)}")
    return [write_run(run, out / format / run.name / "0", tool=format, source=file) for run in READERS[format](file)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m workload.importers", description=__doc__)
    parser.add_argument("format", choices=READERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the imported runs")
    options = parser.parse_args(arguments)
    try:
        for directory in import_results(options.format, options.file, options.out):
            print(directory)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
