"""The default target: an engine in a process of its own, on cores of its own."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.outputs import RequestStats
from engine.process import EngineProcess, EngineProcessDied
from engine.sequence import Request
from workload.targets.base import TargetEvent, TargetFailed

SPIN_S = 2.5e-3  # sleep wakes up late by up to about this much; the last stretch before a deadline is spun
LAST_SLEEP_S = 4e-3  # a sleep not longer than this is not divided


class ProcessTarget:
    """Starts the engine process and speaks to it; see ``workload.targets.base.Target``.

    Args:
        config: the engine's options.
        cores: the cores the engine is pinned to; ``None`` leaves it free.
    """

    def __init__(self, config: EngineConfig, cores: Sequence[int] | None = None) -> None:
        self._process = EngineProcess(config, cores)
        self._poller = select.poll()
        self._poller.register(self._process.readable, select.POLLIN)
        self.info: dict[str, Any] = self._process.info

    @property
    def pid(self) -> int:
        return self._process.pid

    def now(self) -> float:
        return time.perf_counter()

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        try:
            self._process.start_run(directory, origin_s)
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death

    def submit(self, request: Request) -> None:
        try:
            self._process.add_request(request)
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death

    def abort(self, request_id: str) -> None:
        try:
            self._process.abort(request_id)
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death

    def wait(self, until_s: float) -> None:
        """See the contract. Returns at once in the last ``SPIN_S``, so that the caller's own loop is what spins, and its code
        is in the processor's cache when the deadline comes."""
        while True:
            sleep_s = until_s - time.perf_counter() - SPIN_S
            # Linux wakes a sleeper late by a share of its sleep: half of it first, so that the last piece is short.
            timeout_s = sleep_s / 2 if sleep_s > LAST_SLEEP_S else max(sleep_s, 0.0)
            if self._poller.poll(int(timeout_s * 1e3)) or sleep_s <= 0:
                return

    def next_events(self) -> list[TargetEvent]:
        try:
            message = self._process.next_event()
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death
        if message is None:
            return []
        if message[0] == "refused":
            return [TargetEvent(message[1], (), "refused", error=message[2])]
        return [
            TargetEvent(
                request_id,
                () if token_id is None else (token_id,),
                finish_reason,
                None if stats is None else RequestStats(*stats),
            )
            for request_id, token_id, finish_reason, stats in message[1]
        ]

    def finish_run(self) -> dict[str, Any]:
        try:
            return self._process.finish_run()
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death

    def clock_offset(self) -> dict[str, float]:
        try:
            return self._process.clock_offset()
        except EngineProcessDied as death:
            raise TargetFailed(str(death)) from death

    def close(self) -> None:
        self._process.close()
