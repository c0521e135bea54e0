"""A results folder as a whole: its measured runs, and the calibrations that belong to them.

Which calibration a run may use follows from what was recorded: its capacity from a saturated loop of the same request mix on
the same engine options, its step times from any grid with the same execution fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from analysis.capacity import Capacity, Drift, capacity, drift
from analysis.fit.step_time import StepTimeModel, fit_step_time
from analysis.machine_speed import Wobble, step_time_level, wobble
from analysis.runs import Run, find_runs, open_run

T = TypeVar("T")

# What makes the mix of requests on an engine that a capacity belongs to.
MIX = ("model", "engine", "prompt", "output", "length_source", "natural", "prompts")


@dataclass(frozen=True)
class Calibration:
    """What was measured of one request mix: a grid of steps, and the saturated loop before and after the sweep."""

    label: str
    grid: Run | None
    before: Run | None
    after: Run | None
    wobble: Callable[[], Wobble | None] = lambda: None  # of the machine during the study

    @property
    def runs(self) -> Iterator[Run]:
        """Those that exist."""
        return (run for run in (self.grid, self.before, self.after) if run is not None)

    @cached_property
    def capacity(self) -> Capacity | ValueError | None:
        """Completions a second before the sweep; why there is none; None where it was not measured."""
        return None if self.before is None else _or_reason(capacity, self.before)

    @cached_property
    def capacity_after(self) -> Capacity | ValueError | None:
        """The same after the sweep."""
        return None if self.after is None else _or_reason(capacity, self.after)

    @cached_property
    def drift(self) -> Drift | ValueError | None:
        """How much slower the same requests were after the sweep than before it."""
        if self.before is None or self.after is None:
            return None
        return _or_reason(partial(drift, wobble=self.wobble()), self.before, self.after)

    @cached_property
    def step_time(self) -> StepTimeModel | ValueError | None:
        """The step-time model of its grid and of the loop before the sweep; why there is none; None without a grid."""
        if self.grid is None:
            return None
        return _or_reason(fit_step_time, [run for run in (self.grid, self.before) if run is not None])

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved spec of the mix."""
        return next((dict(run.meta.get("spec") or {}) for run in self.runs), {})


@dataclass(frozen=True)
class StudyResults:
    """The measured runs of a folder, in the order in which they were made, and its calibrations by label."""

    path: Path
    name: str
    runs: tuple[Run, ...]
    calibrations: tuple[Calibration, ...]

    def calibration_of(self, run: Run) -> Calibration | None:
        """The calibration that holds ``run``'s capacity: same mix and engine, or the experiment its load refers to."""
        return _calibration_of(run, self.calibrations)

    def step_time_of(self, run: Run) -> StepTimeModel | None:
        """A step-time model of the same execution fingerprint (its own calibration's first)."""
        own = self.calibration_of(run)
        digest = execution_digest(run)
        for calibration in (own, *self.calibrations):
            if calibration is None or calibration.grid is None or execution_digest(calibration.grid) != digest:
                continue
            if isinstance(calibration.step_time, StepTimeModel):
                return calibration.step_time
        return None


def open_study(results: str | Path) -> StudyResults:
    """All runs in and under ``results``.

    Raises:
        ValueError: the folder does not exist or holds no measured run.
    """
    root = Path(results)
    measured: list[Run] = []
    saturated: dict[str, dict[str, Run]] = {}
    for directory in find_runs(root):
        run = open_run(directory)
        if run.meta.get("kind", "measurement") == "calibration":
            saturated.setdefault(directory.parent.name, {})[directory.name] = run
        else:
            measured.append(run)
    if not measured:
        raise ValueError(f"{root} holds no measured run (a folder with a run.json of kind 'measurement')")
    measured.sort(key=_made_at)

    @cache
    def machine_wobble() -> Wobble | None:
        return wobble([_levels(calibration, measured, calibrations) for calibration in calibrations])

    calibrations = tuple(
        Calibration(
            label, parts.get("grid"), parts.get("saturated-before"), parts.get("saturated-after"), machine_wobble
        )
        for label, parts in saturated.items()
    )
    return StudyResults(root, str(measured[0].meta.get("study", root.name)), tuple(measured), calibrations)


def _calibration_of(run: Run, calibrations: Sequence[Calibration]) -> Calibration | None:
    spec = run.meta.get("spec") or {}
    mix = mix_of(spec)
    for calibration in calibrations:
        if mix_of(calibration.spec) == mix:
            return calibration
    wanted = spec.get("load_of") or spec.get("experiment")
    return next((calibration for calibration in calibrations if calibration.label == wanted), None)


def _levels(calibration: Calibration, measured: Sequence[Run], calibrations: Sequence[Calibration]) -> list[float]:
    """Step-time levels of the loop before, the runs of this mix and the loop after, as far as they show one."""
    model = calibration.step_time
    if not isinstance(model, StepTimeModel):
        return []
    own = [run for run in measured if _calibration_of(run, calibrations) is calibration]
    found = [_or_reason(step_time_level, run, model) for run in (calibration.before, *own, calibration.after) if run]
    return [level for level in found if isinstance(level, float)]


def _or_reason(statement: Callable[..., T], *of: object) -> T | ValueError:
    try:
        return statement(*of)
    except ValueError as reason:  # TooShort is one
        return reason


def mix_of(spec: dict[str, Any]) -> str:
    """The request mix and engine options of a spec, as a text that can be compared."""
    return json.dumps({key: spec.get(key) for key in MIX}, sort_keys=True)


def execution_digest(run: Run) -> str | None:
    """What a step's duration depends on: model, back end, threads, processor (None where it was not recorded)."""
    prints = run.meta.get("fingerprints") or {}
    digest = (prints.get("execution") or {}).get("digest")
    return None if digest is None else str(digest)


def seats_of(run: Run) -> int | None:
    """The engine's ``max_num_seqs`` (None where it was not recorded)."""
    engine = run.meta.get("engine") or {}
    seats = engine.get("max_num_seqs")
    return None if seats is None else int(seats)


def known_queue_of(run: Run) -> dict[str, Any] | None:
    """The queue that stood in the engine's place (kind, service, servers); None for an engine."""
    target: dict[str, Any] | None = (run.meta.get("spec") or {}).get("target")
    return target


def replication_of(run: Run) -> str:
    """The number of its replication; of runs repeated with the same seeds also that of the repeat, ``0.3``."""
    spec = run.meta.get("spec") or {}
    number = str(run.meta.get("replication", ""))
    return f"{number}.{spec['repeat']}" if int(spec.get("repeats") or 1) > 1 else number


def name_of(run: Run) -> str:
    """``experiment/point/replication`` as recorded, else the folder's name."""
    meta = run.meta
    if "experiment" in meta:
        return f"{meta['experiment']}/{meta.get('point')}/{replication_of(run)}"
    return "run in memory" if run.path is None else run.path.name


def _made_at(run: Run) -> tuple[float, str]:
    anchor = run.meta.get("wall_clock_anchor") or {}
    return float(anchor.get("unix_s", 0.0)), str(run.path)
