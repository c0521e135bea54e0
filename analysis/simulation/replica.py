"""One engine on simpy's clock: its own core, a model of the step's time, and the pauses between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import simpy

from analysis.fit.step_noise import NoiseStream
from analysis.fit.step_time import StepTimeModel
from analysis.simulation.facts import EngineFacts
from analysis.simulation.tables import MemoryRecorder
from engine.core import EngineCore, TokenEvent
from engine.executors.base import BatchShape
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor, StepTime
from engine.sequence import Request

END_TOKEN = -1  # what ends an output by itself; no prompt and no placeholder has it

Seed = int | list[int]


class Pace:
    """How long the next step takes, and how long the engine pauses after it."""

    def __init__(self, step_time: StepTimeModel | StepTime, noise: bool, seed: Seed, gap_s: float | None) -> None:
        self._step_time = step_time
        self._model = step_time if isinstance(step_time, StepTimeModel) else None
        self._factor = 1.0
        self._stream: NoiseStream | None = None
        self._cold_s = 0.0
        self._given_gap_s = gap_s
        self.gap_s = gap_s or 0.0
        self.wake_s = 0.0
        if self._model is not None:
            self.wake_s = self._model.wake_s
            self.gap_s = self._model.gap_s if gap_s is None else gap_s
            if noise:
                self._stream = self._model.noise.stream(np.random.default_rng(seed))
            else:
                self._factor = self._model.time_factor

    def after_idle(self, idle_s: float) -> None:
        """The next step comes after a pause of ``idle_s``."""
        if self._model is not None:
            self._cold_s = self._model.cold(idle_s)

    def __call__(self, shape: BatchShape) -> float:
        """Seconds of a step; ``gap_s`` becomes the pause after it."""
        seconds, self._cold_s = self._step_time(shape) + self._cold_s, 0.0
        ratio, extra_s, gap_ratio = (self._factor, 0.0, 1.0) if self._stream is None else self._stream.next()
        if self._model is not None and self._given_gap_s is None:
            self.gap_s = self._model.gap(shape) * gap_ratio
        return seconds * ratio + extra_s


class Replica:
    """An engine. Two events a step, of which the pause between steps is one.

    Args:
        env: the clock.
        facts: of the engine.
        pace: seconds of its steps.
        tokens: what its steps give out.
        deliver: is told what each step, or abort, did.
    """

    def __init__(
        self,
        env: simpy.Environment,
        facts: EngineFacts,
        pace: Pace,
        tokens: PlaceholderTokens,
        deliver: Callable[[list[TokenEvent]], None],
    ) -> None:
        executor = SimulatedExecutor(
            pace,
            tokens,
            block_size=facts.block_size,
            num_kv_blocks=facts.num_kv_blocks,
            max_model_len=facts.max_model_len,
        )
        self.core = EngineCore(
            facts.scheduler(),
            executor,
            eos_token_ids=frozenset([END_TOKEN]),
            max_queue=facts.max_queue,
            clock=lambda: env.now,
        )
        self.recorder = MemoryRecorder()
        self.core.record_to(self.recorder)
        self._env = env
        self._pace = pace
        self._deliver = deliver
        self._idle: simpy.Event | None = None
        env.process(self._serve())

    def present(self) -> int:
        """Requests received and not over."""
        return self.core.num_live

    def add(self, request: Request) -> None:
        """Receive a request now.

        Raises:
            RequestRefused: it can't be served here, or the line is full.
        """
        self.core.add(request)
        self._wake()

    def abort(self, request_id: str) -> None:
        """End a request before the next step; one that is not here is no error."""
        self.core.abort(request_id)
        self._wake()

    def _wake(self) -> None:
        if self._idle is not None and not self._idle.triggered:
            self._idle.succeed()

    def _serve(self) -> Iterator[simpy.Event]:
        env, core, pace = self._env, self.core, self._pace
        while True:
            if not core.has_work:
                idle_since_s = env.now
                self._idle = env.event()
                yield self._idle
                self._idle = None
                if pace.wake_s:
                    yield env.timeout(pace.wake_s)
                idle_s = env.now - idle_since_s
                self.recorder.idle_s += idle_s
                pace.after_idle(idle_s)
            aborted, batch = core.begin_step()
            if aborted:
                self._deliver(aborted)
            if batch is None:
                continue
            token_ids, duration_s = core.executor.execute(batch)
            yield env.timeout(duration_s)
            self._deliver(core.finish_step(batch, token_ids))
            if pace.gap_s:
                yield env.timeout(pace.gap_s)
