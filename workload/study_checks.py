"""Mistakes of a study that show only when its parts are held against each other, or against the files they name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.lengths import JointSpec, TraceLengths
from workload.processes.base import ArrivalSpec
from workload.processes.responsive import Closed, Sessions
from workload.processes.trace import Trace
from workload.prompts import HashIds, PromptSpec
from workload.schema import Path as KeyPath
from workload.schema import SpecError, did_you_mean
from workload.study_keys import Span
from workload.sweep import Point, Section
from workload.traces import TraceError

if TYPE_CHECKING:
    from workload.experiment import RunSpec

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


def split_load(
    arrivals: Mapping[str, Any], point: Point, sections: Mapping[str, Section]
) -> tuple[str, dict[str, Any]]:
    """``load: {of: NAME, value: 0.8}`` as the name and the arrivals with a plain load."""
    load = arrivals["load"]
    for key in load:
        if key not in ("of", "value"):
            path = point.locate(sections, "arrivals", ("load", key))
            raise SpecError(path, f"unknown key {key!r}; {did_you_mean(key, ['of', 'value'])}", at_key=True)
    for key in ("of", "value"):
        if key not in load:
            raise SpecError(
                point.locate(sections, "arrivals", ("load",)), f"the key {key!r} is missing; keys here: of, value"
            )
    return str(load["of"]), {**arrivals, "load": load["value"]}


def check_load_references(runs: Sequence[RunSpec], names: Mapping[str, int]) -> None:
    """``load: {of: NAME}`` needs one capacity there: of an engine for an engine's run, of a known queue for a queue's.

    Args:
        names: of the experiments, with their number in the file.
    """
    for run in runs:
        if run.load_of is None:
            continue
        where = ("experiments", names[run.experiment], "arrivals", "load", "of")
        if run.load_of not in names:
            raise SpecError(where, f"found {run.load_of!r}; {did_you_mean(run.load_of, list(names))}")
        others = [other for other in runs if other.experiment == run.load_of]
        if (others[0].target is None) != (run.target is None):
            raise SpecError(
                where,
                f"found {run.load_of!r}: one of the two is an engine, the other a known queue; give a rate instead",
            )
        mixes = {other.mix_key for other in others}
        if len(mixes) > 1:
            raise SpecError(
                where,
                f"{run.load_of!r} sweeps its engine or lengths, so it has {len(mixes)} capacities; one is allowed",
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
