"""Runs a study: engines started and calibrated, every run measured, in the order of the file.

Runs that follow each other with the same engine share one engine process; a known queue begins anew in each run. Where
a run is given by its load, the capacity of its mix is measured before it, and again after the last run of the group
(the two tell whether the machine drifted).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.config import EngineConfig
from workload.ahead import Agenda, Ahead
from workload.calibrate import DECODE_STEPS, saturated_loop, step_grid, warm_up_requests
from workload.experiment import RunSpec, Study
from workload.known_queue import KnownQueue
from workload.measure import measure
from workload.offering import LIST_LENGTH, Offering, keeps_prompts, offer, request_list, vocabulary_of
from workload.phases import Phases
from workload.plan import run_lengths
from workload.reporting import Reporter, RunTitle
from workload.run_directory import ClientTables
from workload.study_keys import CalibrationKeys
from workload.targets.base import Target
from workload.targets.inline import VirtualClock
from workload.targets.stub import StubTarget

WARM_UP_PROMPTS = (8, 64, 8)
LONGER_LOOPS = (1, 3, 9)  # times calibration.seconds, where the saturated loop completed too few requests


class Capacity(Protocol):
    """Completions a second under a permanent backlog, with its interval."""

    @property
    def rate(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


@dataclass(frozen=True)
class Cores:
    """Which cores serve whom; with one core the two share it."""

    generator: tuple[int, ...]
    engine: tuple[int, ...]

    @classmethod
    def split(cls) -> Cores:
        """The first core of this process for the generator, the others for the engine."""
        cores = sorted(os.sched_getaffinity(0))
        return cls((cores[0],), tuple(cores[1:] or cores))


class StudyRunner:
    """Measures a study into ``results``.

    Args:
        start_target: starts an engine for the given options.
        capacity_of: reads the capacity from the directory of a saturated run.
        resume: keep complete runs that have the same spec, and their calibration, instead of refusing to overwrite them.
        about: what every run.json says beside what is observed.
        queue_clock: makes the clock of each known queue; default: real time.
    """

    def __init__(
        self,
        study: Study,
        results: Path,
        *,
        start_target: Callable[[EngineConfig], Target],
        capacity_of: Callable[[Path], Capacity],
        reporter: Reporter,
        resume: bool = False,
        about: Mapping[str, Any] | None = None,
        queue_clock: Callable[[], VirtualClock] | None = None,
    ) -> None:
        self._study = study
        self._queue_clock = queue_clock
        self._results = results
        self._start_target = start_target
        self._capacity_of = capacity_of
        self._reporter = reporter
        self._resume = resume
        self._about = {"outputs": study.outputs.model_dump(), **(about or {})}
        self._capacities: dict[str, float] = {}
        self._agenda = Agenda(study, ())

    def run(self, runs: Sequence[RunSpec]) -> list[Path]:
        """Measure ``runs`` (of the study) and return their directories.

        Raises:
            TargetFailed, KeyboardInterrupt: what is complete stays; the run in progress is labelled.
        """
        directories: list[Path] = []
        self._agenda = Agenda(self._study, runs)
        for _, together in itertools.groupby(
            runs, key=lambda run: (run.target is None, run.model, sorted(run.engine.items()))
        ):
            group = list(together)
            if group[0].target is None:
                directories += self._run_group(group)
            else:
                directories += [self._measure_queue(run, run.target) for run in group if run.target is not None]
        return directories

    def _measure_queue(self, run: RunSpec, queue: KnownQueue) -> Path:
        """A run against a known queue, which begins anew in each run and whose capacity is known."""
        session = _Session(StubTarget.of(queue, run.seeds.service, self._queue_clock), self._reporter, self._about)
        session.warm_up()
        return self._measure(session, run)

    def _run_group(self, runs: list[RunSpec]) -> list[Path]:
        done = [self._is_done(self._results / run.run_dir, run) for run in runs]
        mixes = self._mixes(runs)
        calibrated = all(self._is_done(path, None) for path in self._calibration_paths(mixes))
        if all(done) and calibrated:
            self._agenda.drop(runs, len(mixes))
            return [self._results / run.run_dir for run in runs]
        config = EngineConfig.from_options(model=runs[0].model, seed=self._study.seed, **runs[0].engine)
        self._reporter.say(f"starting the engine: {config.model}, {_options(runs[0].engine)}")
        target = self._start_target(config)
        try:
            session = _EngineSession(target, self._reporter, self._about, config, self._study.calibration)
            session.warm_up()
            for label, mix in mixes.items():
                self._calibrate(session, label, mix, "before")
            directories = [self._measure(session, run) for run in runs]
            for label, mix in mixes.items():
                self._calibrate(session, label, mix, "after")
            return directories
        finally:
            target.close()

    def _mixes(self, runs: list[RunSpec]) -> dict[str, RunSpec]:
        """One run for every mix of requests whose capacity is wanted, by a readable label."""
        mixes: dict[str, RunSpec] = {}
        for run in runs:
            wanted = self._study.capacity_run(run)
            if getattr(run.arrivals, "load", None) is None or wanted.mix_key in {mix.mix_key for mix in mixes.values()}:
                continue
            if wanted.mix_key not in self._capacities:
                label = wanted.experiment if wanted.experiment not in mixes else f"{wanted.experiment}-{wanted.point}"
                mixes[label] = wanted
        return mixes

    def _calibration_paths(self, mixes: dict[str, RunSpec]) -> list[Path]:
        names = ("grid", "saturated-before", "saturated-after")
        return [self._results / "calibration" / label / name for label in mixes for name in names]

    def _calibrate(self, session: _EngineSession, label: str, mix: RunSpec, when: str) -> None:
        folder = self._results / "calibration" / label
        about = {"kind": "calibration", "study": self._study.name, "experiment": mix.experiment, "spec": mix.to_dict()}
        if when == "before" and not self._is_done(folder / "grid", None):
            about_grid = {**about, "point": f"calibration/{label}", "replication": "grid"}
            session.grid(folder / "grid", mix, about_grid, self._ahead())
        path = folder / f"saturated-{when}"
        self._agenda.begin_loop()
        capacity = self._saturate(session, path, mix, {**about, "point": f"calibration/{label}"})
        if when == "before":
            self._capacities[mix.mix_key] = capacity.rate
            self._reporter.say(
                f"{label}: capacity {capacity.rate:.2f} req/s (95 % confidence {capacity.low:.2f} to {capacity.high:.2f})"
            )

    def _saturate(self, session: _EngineSession, path: Path, mix: RunSpec, about: dict[str, Any]) -> Capacity:
        """The capacity of ``mix``; on a slow machine the loop is run again for longer until it has enough completions.

        Raises:
            ValueError: even the longest loop had too few.
        """
        for stretch in LONGER_LOOPS:
            if not self._is_done(path, None):
                session.saturate(path, mix, {**about, "replication": path.name}, self._ahead(), stretch)
            try:
                return self._capacity_of(path)
            except ValueError as reason:
                self._reporter.say(f"{path.name}: {reason}")
                shutil.rmtree(path)
                last = reason
        seconds = LONGER_LOOPS[-1] * self._study.calibration.seconds
        raise ValueError(
            f"{self._study.path}: no capacity for {mix.experiment!r} from {seconds:g} s under backlog ({last}): "
            "raise calibration.seconds, or shorten the requests"
        )

    def _rate(self, run: RunSpec) -> float | None:
        """Requests per second of a run that is given by its load; ``None`` while its capacity is not known."""
        load = getattr(run.arrivals, "load", None)
        of = self._study.capacity_run(run)
        capacity = of.target.capacity if of.target is not None else self._capacities.get(of.mix_key)
        return None if load is None or capacity is None else load * capacity

    def _ahead(self) -> Ahead:
        return self._agenda.ahead(lambda run: self._rate(run) or run.arrivals.mean_rate)

    def _measure(self, session: _Session, run: RunSpec) -> Path:
        path = self._results / run.run_dir
        self._agenda.begin_run(run)
        if self._is_done(path, run):
            self._reporter.say(f"{run.run_dir}: kept, it is complete")
            return path
        session.measure(path, run, self._rate(run), self._ahead())
        return path

    def _is_done(self, path: Path, run: RunSpec | None) -> bool:
        if not self._resume or not (path / "run.json").exists():
            return False
        spec = json.loads((path / "run.json").read_text()).get("spec")
        return run is None or spec == json.loads(json.dumps(run.to_dict()))


class _Session:
    """One started target and what can be asked of it."""

    def __init__(self, target: Target, reporter: Reporter, about: Mapping[str, Any]) -> None:
        self._target = target
        self._reporter = reporter
        self._about = about
        self._vocabulary = vocabulary_of(target.info)
        self._max_model_len = int(target.info["max_model_len"])

    def warm_up(self) -> None:
        """Load what writes the tables, so that no run waits for it. Nothing is kept."""
        with tempfile.TemporaryDirectory() as folder:
            ClientTables(Path(folder), 0.0).close()

    def measure(self, path: Path, run: RunSpec, rate: float | None, ahead: Ahead) -> None:
        offering = offer(run, rate, self._vocabulary, self._max_model_len)
        about = {
            "kind": "measurement",
            "study": run.study,
            "experiment": run.experiment,
            "point": run.point,
            "replication": run.replication,
            "rate": rate if rate is not None else run.arrivals.mean_rate,
            "spec": run.to_dict(),
            "seeds": run.seeds.to_dict(),
            "notes": list(offering.notes),
        }
        for note in offering.notes:
            self._reporter.say(f"{run.run_dir}: {note}")
        self._reporter.begin(RunTitle(_title(about), offering.phases.measure_end_s, ahead=ahead))
        self._run(
            offering,
            path,
            about,
            cooldown_s=run.cooldown.seconds,
            max_concurrency=run.max_concurrency,
            timeout_s=None if run.timeout is None else run.timeout.seconds,
            record_tokens=run.record.tokens,
            record_prompts=keeps_prompts(run),
        )

    def _run(
        self,
        offering: Offering,
        path: Path,
        about: dict[str, Any],
        **options: Any,
    ) -> None:
        """Measure it, told by the reporter that has begun; ``options`` are those of ``measure``."""
        try:
            measure(
                self._target,
                offering.loop,
                offering.phases,
                path,
                about={**self._about, **about},
                on_progress=self._reporter.progress,
                **options,
            )
        finally:
            self._reporter.end()


class _EngineSession(_Session):
    """A started engine, which can be calibrated too."""

    def __init__(
        self,
        target: Target,
        reporter: Reporter,
        about: Mapping[str, Any],
        config: EngineConfig,
        calibration: CalibrationKeys,
    ) -> None:
        super().__init__(target, reporter, about)
        self._config = config
        self._calibration = calibration

    def warm_up(self) -> None:
        """Untimed: let the engine touch its pages and shapes, and both sides load what writes the tables."""
        super().warm_up()
        loop = warm_up_requests(self._vocabulary.source(0), WARM_UP_PROMPTS)
        with tempfile.TemporaryDirectory() as folder:
            self._target.start_run(Path(folder), self._target.now())
            while not loop.exhausted:
                while loop.next_due() < float("inf"):
                    self._target.submit(loop.take().request)
                self._target.wait(self._target.now() + 1.0)
                for event in self._target.next_events():
                    if event.finish_reason is not None:
                        loop.on_end(event.request_id, 0.0)
            self._target.finish_run()

    def grid(self, path: Path, mix: RunSpec, about: dict[str, Any], ahead: Ahead) -> None:
        loop = step_grid(
            *run_lengths(mix, LIST_LENGTH),
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_prompt=self._max_model_len - DECODE_STEPS,
            source=self._vocabulary.source(mix.seeds.prompts),
            rounds=self._calibration.grid_rounds,
        )
        self._reporter.begin(RunTitle(_title(about), None, len(loop), ahead))
        self._run(Offering(loop, Phases(0.0, float("inf"))), path, about, cooldown_s=0.0)

    def saturate(self, path: Path, mix: RunSpec, about: dict[str, Any], ahead: Ahead, stretch: int = 1) -> None:
        requests = request_list(mix, self._vocabulary, *run_lengths(mix, LIST_LENGTH))
        loop = saturated_loop(requests, self._config.max_num_seqs)
        start_s = self._calibration.warmup
        end_s = start_s + stretch * self._calibration.seconds
        self._reporter.begin(RunTitle(_title(about), end_s, ahead=ahead))
        self._run(Offering(loop, Phases(start_s, end_s)), path, about, cooldown_s=0.0)


def _title(about: Mapping[str, Any]) -> str:
    """The folder of a run; the point of a calibration names its experiment already."""
    parts = ("point", "replication") if about["kind"] == "calibration" else ("experiment", "point", "replication")
    return "/".join(str(about[part]) for part in parts)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "default options"
