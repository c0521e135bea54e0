"""The engine of a simulated study: its own core in virtual time as a target that the ordinary study runner drives.

Where the step times come from is decided here: fitted to the calibration of a measured study, or an emulated engine's own.
The same driver, loops, recorder and tables are used as in a measurement; only time and the executor are not real.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.fit.step_time import StepTimeModel
from analysis.simulation.replica import Pace
from analysis.study import Calibration, open_study
from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.base import ScheduledBatch
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor, StepTime
from engine.executors.step_time import LinearStepTime
from engine.recorder import FileRecorder, StepRow
from engine.scheduler import Scheduler
from engine.sequence import Request
from workload.experiment import RunSpec
from workload.targets.inline import InlineTarget, VirtualClock

# the options that a step's time depends on, as the execution fingerprint does
EXECUTION = ("model", "executor", "step_time", "backend", "dtype", "attention", "num_threads")
FROM_ENGINE = ("block_size", "num_kv_blocks", "max_model_len")
SCHEDULING = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "watermark", "policy", "ageing")


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, the facts of the engine they belong to, and where they come from, in words."""

    step_time: StepTimeModel | StepTime
    facts: dict[str, Any]  # vocabulary, special tokens, blocks, longest request
    source: str
    execution: dict[str, Any]


class SimulatedEngines:
    """Starts the engines of a simulated study.

    Args:
        calibration: results folder of a measured study whose grids are fitted; ``None``: each engine's own ``step_time``.

    Raises:
        ValueError: the folder holds no measured run.
    """

    def __init__(self, calibration: Path | None) -> None:
        self._path = calibration
        self._calibrations = () if calibration is None else open_study(calibration).calibrations

    @property
    def source(self) -> str:
        """Where the step times come from."""
        if self._path is None:
            return "step_time of the emulated engine"
        return f"fitted to the calibration in {self._path}"

    def check(self, runs: Iterable[RunSpec]) -> None:
        """Refuse, before anything is simulated, what can't be.

        Raises:
            ValueError: an engine without step times, or outputs that end where a model would end them.
        """
        for run in runs:
            self.step_times(EngineConfig.from_options(model=run.model, **run.engine))
            if run.natural:
                raise ValueError(
                    f"{run.run_dir}: natural: true lets the model end an output, and a simulation has no model; remove it "
                    "(lengths are then drawn)"
                )

    def start(self, config: EngineConfig) -> SimulatedTarget:
        """An engine with these options; its noise is resampled from a stream of ``config.seed``."""
        times = self.step_times(config)
        facts = {name: _decided(config, name, times.facts[name]) for name in FROM_ENGINE}
        clock = VirtualClock()
        pace = Pace(times.step_time, noise=True, seed=config.seed, gap_s=None)
        executor = SimulatedExecutor(pace, PlaceholderTokens(), **facts)
        scheduler = Scheduler(config, executor.num_kv_blocks, executor.block_size, executor.max_model_len)
        core = EngineCore(scheduler, executor, max_queue=config.max_queue, clock=clock)
        target = SimulatedTarget(core, clock, pace)
        options = {name: getattr(config, name) for name in SCHEDULING} | {"max_queue": config.max_queue}
        target.info |= times.facts | facts
        target.info |= {name: options[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
        target.info |= {"step_times": times.source}
        target.info["fingerprints"] = {
            "execution": _with_digest(
                {"executor": "simulated", "step_times": times.source, "of": times.execution.get("digest")}
            ),
            "scheduling": _with_digest({**options, **facts}),
        }
        return target

    def step_times(self, config: EngineConfig) -> StepTimes:
        """The step times of an engine with these options.

        Raises:
            ValueError: there are none; the message says what would give them.
        """
        if self._path is not None:
            return self._fitted(config)
        if config.executor != "emulated":
            raise ValueError(
                f"--simulate needs step times, and {config.model} says none: give --calibration RESULTS, the results "
                "folder of a measured study with loads, or executor: emulated with a step_time"
            )
        _, info = build_core(config)
        facts = {name: getattr(info, name) for name in (*FROM_ENGINE, "vocab_size", "special_token_ids")}
        step_time = LinearStepTime.from_mapping(config.step_time)
        return StepTimes(step_time, facts, "step_time of the emulated engine", info.fingerprints["execution"])

    def _fitted(self, config: EngineConfig) -> StepTimes:
        """Of the calibration with the same seats (else the most), among those of the same execution."""
        same = [calibration for calibration in self._calibrations if not _differences(calibration, config)]
        same.sort(key=lambda calibration: (_seats(calibration) != config.max_num_seqs, -_seats(calibration)))
        reasons = []
        for calibration in same:
            model = calibration.step_time
            if isinstance(model, StepTimeModel) and calibration.grid is not None:
                facts = dict(calibration.grid.meta["engine"])
                kept = {name: facts[name] for name in (*FROM_ENGINE, "vocab_size", "special_token_ids")}
                execution = model.execution or {}
                source = f"calibration {calibration.label} in {self._path}, execution {execution.get('digest')}"
                return StepTimes(model, kept, source, execution)
            reasons.append(f"{calibration.label}: {model if model is not None else 'it has no grid'}")
        if not self._calibrations:
            reasons = ["it holds no calibration (a study with loads makes one)"]
        elif not same:
            reasons = [f"{c.label} was measured with {_differences(c, config)}" for c in self._calibrations]
        raise ValueError(f"--calibration {self._path}: no step times for {config.model}: " + "; ".join(reasons))


class SimulatedTarget(InlineTarget):
    """An engine in virtual time that pauses between steps and wakes up as the fitted one did."""

    def __init__(self, core: EngineCore, clock: VirtualClock, pace: Pace) -> None:
        super().__init__(core, clock, pace.gap_s)
        self.info["target"] = "simulated"
        self._pace = pace
        self._counted: dict[str, int] = {}

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        super().start_run(None, origin_s)
        self._free_s = self._clock.time_s
        self._counted = self._core.counters()
        if directory is not None:
            self._recorder = _IdleRecorder(directory, origin_s, self._clock)
            self._core.record_to(self._recorder)

    def submit(self, request: Request) -> None:
        was_idle = self._step is None and not self._core.has_work and self._clock.time_s >= self._free_s
        since_s = self._free_s
        super().submit(request)
        if was_idle and self._core.has_work:
            self._free_s = self._clock.time_s + self._pace.wake_s
            self._pace.after_idle(self._free_s - since_s)
            if isinstance(self._recorder, _IdleRecorder):
                self._recorder.idle_s = self._free_s - since_s

    def finish_run(self) -> dict[str, Any]:
        counted = {name: value - self._counted[name] for name, value in self._core.counters().items()}
        return {**super().finish_run(), **counted}

    def _begin_step_if_due(self) -> None:
        super()._begin_step_if_due()
        self._gap_s = self._pace.gap_s  # drawn with the step


class _IdleRecorder(FileRecorder):
    """A recorder told from outside how long the engine was idle: in virtual time the core never waits."""

    idle_s = 0.0

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None:
        super().record_step(row._replace(idle_s=self.idle_s), batch)
        self.idle_s = 0.0


def _decided(config: EngineConfig, name: str, measured: int) -> int:
    """What the study says, else what the measured engine had."""
    stated = getattr(config, name)
    return measured if stated in (None, "auto") else int(stated)


def _differences(calibration: Calibration, config: EngineConfig) -> str:
    """The options of the calibrated engine by which its steps take another time, in words; empty where there are none."""
    spec = calibration.spec
    theirs = EngineConfig.from_options(model=spec["model"], **spec["engine"])
    found = [(name, getattr(theirs, name)) for name in EXECUTION if getattr(theirs, name) != getattr(config, name)]
    return ", ".join(f"{name} {value}" for name, value in found)


def _seats(calibration: Calibration) -> int:
    return EngineConfig.from_options(model=calibration.spec["model"], **calibration.spec["engine"]).max_num_seqs


def _with_digest(facts: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(facts, sort_keys=True, default=str)
    return {**facts, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
