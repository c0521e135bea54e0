"""Mistakes of a study that show only when its parts are held against each other, or against the files they name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from workload.lengths import JointSpec, TraceLengths
from workload.processes.base import ArrivalSpec
from workload.processes.responsive import Closed, Sessions
from workload.processes.trace import Trace
from workload.prompts import HashIds, PromptSpec
from workload.schema import Path as KeyPath
from workload.schema import SpecError
from workload.study_keys import Span
from workload.traces import TraceError

TRACES = "LATENCY_LAB_TRACES"  # environment variable: a folder of files that studies name and that lie elsewhere


def find_file(folder: Path, name: str) -> Path:
    """The file that a study in ``folder`` calls ``name``: from there on, or of the same name in ``$LATENCY_LAB_TRACES``.

    Raises:
        FileNotFoundError: it is in neither; says where it was looked for.
    """
    file = folder / name
    if file.is_file():
        return file
    traces = os.environ.get(TRACES)
    if traces is None:
        raise FileNotFoundError(f"{file} is no file; the environment variable {TRACES} may name a folder that has it")
    elsewhere = Path(traces) / file.name
    if elsewhere.is_file():
        return elsewhere
    raise FileNotFoundError(f"{file} is no file, nor is {elsewhere} ({TRACES})")


def check_spans(arrivals: ArrivalSpec, warmup: Span, measure: Span, where: KeyPath) -> None:
    """Where the arrivals depend on the answers, a span in requests has no end that could be known beforehand."""
    if not isinstance(arrivals, Closed | Sessions):
        return
    for name, span in (("warmup", warmup), ("measure", measure)):
        if span.seconds is None:
            raise SpecError(
                (*where, name, "requests"),
                f"found {span.requests} requests, but when arrivals of process {arrivals.process!r} come depends on the "
                "answers; seconds are allowed",
            )


class TraceChecks:
    """Reads every trace of a study once, so that its mistakes are told before anything runs."""

    def __init__(self) -> None:
        self._columns: dict[str, frozenset[str]] = {}  # of each trace that was read without a mistake

    def check(
        self,
        arrivals: ArrivalSpec,
        lengths: JointSpec | TraceLengths | None,
        prompts: PromptSpec,
        where: Sequence[str | int],
    ) -> None:
        """Raises SpecError (at ``where``, the arrivals) where the trace can't be read or lacks what the run takes from it."""
        columns = (
            self._read(arrivals, where) if isinstance(arrivals, Trace) and arrivals.path is not None else frozenset()
        )
        if isinstance(prompts, HashIds) and "hash_ids" not in columns:
            raise SpecError(
                where,
                "prompts of kind 'hash_ids' need a trace that has them (format mooncake, or columns: {hash_ids: NAME})",
            )
        if isinstance(lengths, TraceLengths) and "prompt_tokens" not in columns:
            raise SpecError(where, "the trace has no lengths; give prompt and output instead of lengths: {from: trace}")

    def _read(self, arrivals: Trace, where: Sequence[str | int]) -> frozenset[str]:
        own = arrivals.model_copy(update={"rate": None, "load": None})
        key = own.model_dump_json()
        if key not in self._columns:
            try:
                table = own.table(0)
            except TraceError as error:
                raise SpecError((*where, "path"), str(error)) from None
            self._columns[key] = frozenset(str(name) for name in table if not table[name].isna().all())
        return self._columns[key]
