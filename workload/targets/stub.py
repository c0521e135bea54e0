"""A known queue as a target, in real or virtual time: the instrument's own test.

A request's departure follows from the Kiefer-Wolfowitz recursion the moment it is received (first come, first served, c
servers); its one token is delivered at that absolute time. What the driver then reports must be the textbook's queue.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.outputs import RequestStats
from engine.sequence import Request
from workload.known_queue import KnownQueue
from workload.targets.base import TargetEvent
from workload.targets.inline import VirtualClock
from workload.targets.process import LAST_SLEEP_S, SPIN_S

LONGEST = 2**31  # tokens of a request; a queue does not count them


class StubTarget:
    """``c`` servers with service times (seconds) taken from ``service_times``, in order of receipt.

    An aborted request is answered at once; its service stays in the queue's work, as departures are fixed on receipt.

    Args:
        clock: virtual time, which waiting moves; default: real time.
    """

    def __init__(self, service_times: Iterator[float], c: int = 1, clock: VirtualClock | None = None) -> None:
        if c < 1:
            raise ValueError(f"c is {c}; a queue has at least one server")
        self.info: dict[str, Any] = {
            "target": "stub",
            "servers": c,
            "vocab_size": 2,
            "special_token_ids": (),
            "max_model_len": LONGEST,
        }
        self._clock = clock
        self._time: Callable[[], float] = clock if clock is not None else time.perf_counter
        self._service_times = service_times
        self._free_s = [-math.inf] * c
        self._departures: list[tuple[float, int, Request, RequestStats]] = []
        self._aborted: deque[str] = deque()
        self._received = 0

    @classmethod
    def of(cls, queue: KnownQueue, seed: int, make_clock: Callable[[], VirtualClock] | None = None) -> StubTarget:
        """The queue that a study describes, with service times of their own stream of ``seed``."""
        stub = cls(queue.service_times(seed), queue.servers, make_clock() if make_clock is not None else None)
        stub.info |= {"service": queue.service.model_dump(mode="json"), "capacity": queue.capacity}
        return stub

    def now(self) -> float:
        return self._time()

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        self._free_s = [-math.inf] * len(self._free_s)

    def submit(self, request: Request) -> None:
        received_s = self._time()
        start_s = max(received_s, heapq.heappop(self._free_s))
        done_s = start_s + next(self._service_times)
        heapq.heappush(self._free_s, done_s)
        stats = RequestStats(received_s, start_s, done_s, done_s, done_s, start_s - received_s, None, 0, 0, -1)
        self._received += 1
        heapq.heappush(self._departures, (done_s, self._received, request, stats))

    def abort(self, request_id: str) -> None:
        left = [departure for departure in self._departures if departure[2].request_id != request_id]
        if len(left) < len(self._departures):
            heapq.heapify(left)
            self._departures = left
            self._aborted.append(request_id)

    def wait(self, until_s: float) -> None:
        if self._aborted:
            return
        until_s = min(until_s, self._departures[0][0]) if self._departures else until_s
        if self._clock is not None:
            self._clock.time_s = max(self._clock.time_s, until_s)
            return
        while (sleep_s := until_s - time.perf_counter() - SPIN_S) > 0:  # halved towards the deadline, as for a process
            time.sleep(sleep_s / 2 if sleep_s > LAST_SLEEP_S else sleep_s)
        while time.perf_counter() < until_s:
            pass

    def next_events(self) -> list[TargetEvent]:
        if self._aborted:
            return [TargetEvent(self._aborted.popleft(), (), "aborted")]
        if not self._departures or self._departures[0][0] > self._time():
            return []
        _, _, request, stats = heapq.heappop(self._departures)
        return [TargetEvent(request.request_id, (0,), "length", stats)]

    def finish_run(self) -> dict[str, Any]:
        return {"received": self._received}

    def clock_offset(self) -> dict[str, float]:
        return {"low_s": 0.0, "high_s": 0.0}

    def close(self) -> None:
        """Nothing to end."""
