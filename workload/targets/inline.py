"""An engine core in virtual time as a target: exact, instant, for tests of everything that is not a clock."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from engine.core import EngineCore, TokenEvent
from engine.executors.base import ScheduledBatch
from engine.outputs import RequestStats
from engine.recorder import FileRecorder
from engine.scheduler import RequestRefused
from engine.sequence import Request
from workload.targets.base import TargetEvent


class VirtualClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


class InlineTarget:
    """Runs ``core`` on ``clock`` inside the driver's own waiting: a step that began ends at its modelled time.

    Args:
        core: built with ``clock`` and a ``SimulatedExecutor``.
        gap_s: modelled time between the end of a step and the start of the next.
    """

    def __init__(self, core: EngineCore, clock: VirtualClock, gap_s: float = 0.0) -> None:
        self.info: dict[str, Any] = {"target": "inline"}
        self._core = core
        self._clock = clock
        self._gap_s = gap_s
        self._free_s = 0.0
        self._step: tuple[float, ScheduledBatch, list[int]] | None = None
        self._events: deque[list[TargetEvent]] = deque()
        self._recorder: FileRecorder | None = None

    def now(self) -> float:
        return self._clock.time_s

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        self._core.scheduler.block_manager.clear_cache()
        self._recorder = FileRecorder(directory, origin_s, self._clock) if directory else None
        self._core.record_to(self._recorder)

    def submit(self, request: Request) -> None:
        try:
            self._core.add(request)
        except RequestRefused as refusal:
            self._events.append([TargetEvent(request.request_id, (), "refused", error=str(refusal))])

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)

    def wait(self, until_s: float) -> None:
        while not self._events:
            self._begin_step_if_due()
            if self._events:  # an abort, answered between two steps
                return
            ends_s = self._step[0] if self._step else self._free_s if self._core.has_work else float("inf")
            if ends_s > until_s:
                self._clock.time_s = max(self._clock.time_s, until_s)
                return
            self._clock.time_s = max(self._clock.time_s, ends_s)
            if self._step is not None:
                _, batch, token_ids = self._step
                self._step = None
                self._free_s = self._clock.time_s + self._gap_s
                self._publish(self._core.finish_step(batch, token_ids))

    def next_events(self) -> list[TargetEvent]:
        return self._events.popleft() if self._events else []

    def finish_run(self) -> dict[str, Any]:
        self._core.record_to(None)
        return self._recorder.close() if self._recorder else {}

    def clock_offset(self) -> dict[str, float]:
        return {"low_s": 0.0, "high_s": 0.0}

    def close(self) -> None:
        """Nothing to end."""

    def _begin_step_if_due(self) -> None:
        if self._step is None and self._core.has_work and self._clock.time_s >= self._free_s:
            aborted, batch = self._core.begin_step()
            self._publish(aborted)
            if batch is not None:
                token_ids, duration_s = self._core.executor.execute(batch)
                self._step = (self._clock.time_s + duration_s, batch, token_ids)

    def _publish(self, events: list[TokenEvent]) -> None:
        if events:
            self._events.append([_to_target_event(event) for event in events])


def _to_target_event(event: TokenEvent) -> TargetEvent:
    seq = event.seq
    token_ids = () if event.token_id is None else (event.token_id,)
    stats = RequestStats.of(seq) if seq.finish_reason else None
    return TargetEvent(seq.request_id, token_ids, seq.finish_reason, stats)
