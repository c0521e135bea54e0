"""A target in virtual time whose answers are written down beforehand, for symptoms that only odd answers show."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from engine.sequence import Request
from workload.driver import Driver, DriveResult
from workload.loops import Loop, RequestList
from workload.phases import Phases
from workload.run_directory import ClientTables, RunDirectory
from workload.targets.base import TargetEvent

Answer = list[tuple[float, tuple[int, ...], str | None]]  # seconds after sending, tokens, finish reason


class ScriptedTarget:
    """Answers request after request as ``answer(request)`` says; keeps what was sent, and when."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.info: dict[str, Any] = {"target": "scripted"}
        self.sent: list[tuple[float, Request]] = []
        self._answer = answer
        self._now_s = 0.0
        self._news: list[tuple[float, int, TargetEvent]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now_s

    def start_run(self, directory: Path | None, origin_s: float) -> None: ...

    def submit(self, request: Request) -> None:
        self.sent.append((self._now_s, request))
        for after_s, tokens, reason in self._answer(request):
            event = TargetEvent(request.request_id, tokens, reason)
            heapq.heappush(self._news, (self._now_s + after_s, next(self._order), event))

    def abort(self, request_id: str) -> None:
        self._news = [item for item in self._news if item[2].request_id != request_id]
        self._news.append((self._now_s, next(self._order), TargetEvent(request_id, (), "aborted")))
        heapq.heapify(self._news)

    def wait(self, until_s: float) -> None:
        first_s = self._news[0][0] if self._news else until_s
        self._now_s = max(self._now_s, min(until_s, first_s))

    def next_events(self) -> list[TargetEvent]:
        return [heapq.heappop(self._news)[2]] if self._news and self._news[0][0] <= self._now_s else []

    def finish_run(self) -> dict[str, Any]:
        return {}

    def clock_offset(self) -> dict[str, float]:
        return {"low_s": 0.0, "high_s": 0.0}

    def close(self) -> None: ...


def requests(n: int, output_tokens: int = 1) -> RequestList:
    return RequestList([np.array([1, 2, 3], dtype=np.int32)] * n, [output_tokens] * n)


def drive(
    target: ScriptedTarget, loop: Loop, folder: Path, phases: Phases | None = None, **options: Any
) -> tuple[DriveResult, Path]:
    """One run; its result and its directory."""
    directory = RunDirectory(folder / "run")
    tables = ClientTables(directory.path, 0.0)
    result = Driver(target, loop, phases or Phases(0.0, float("inf")), tables, origin_s=0.0, **options).run()
    tables.close()
    directory.write_meta({"status": "complete"})
    return result, directory.complete()


def table(run: Path, name: str = "requests") -> pd.DataFrame:
    return pq.read_table(run / f"{name}.parquet").to_pandas()
