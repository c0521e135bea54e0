"""Textbook service stations on simpy's clock: servers with one line, processor sharing, batch service.

A station takes jobs and calls ``on_end`` when each is done. Two events a job where servers are dedicated; one a change where
they are shared.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol

import simpy

Order = Literal["fcfs", "lcfs", "priority", "sjf"]
ORDERS: tuple[Order, ...] = ("fcfs", "lcfs", "priority", "sjf")


@dataclass(slots=True, eq=False)
class Job:
    """One request at one station; ``begin_s`` and ``end_s`` are nan until they happen."""

    index: int
    service_s: float
    priority: int = 0
    begin_s: float = math.nan
    end_s: float = math.nan


OnEnd = Callable[[Job], None]


class Station(Protocol):
    """The contract of a station."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    def arrive(self, job: Job) -> None: ...


@dataclass(frozen=True)
class Servers:
    """G/G/c/K: equal servers, one line.

    Attributes:
        count: servers.
        order: who is next: ``fcfs``, ``lcfs``, ``priority`` (lower first, non-preemptive, first come first served within
            one) or ``sjf`` (shortest service).
        capacity: most jobs present, those in service counted; one more is refused.
    """

    count: int = 1
    order: Order = "fcfs"
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}; a station has at least one server")
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; it must be one of {', '.join(ORDERS)}")
        _check_capacity(self.capacity)

    def build(self, env: simpy.Environment, on_end: OnEnd) -> Station:
        return ServerStation(env, self, on_end)


@dataclass(frozen=True)
class Sharing:
    """Processor sharing: all in service get the same share of a station whose speed depends on how many they are.

    Attributes:
        limit: most jobs in service (limited processor sharing); the others wait, first come first served. None: no limit.
        speed: seconds of service that the station gives per second to n jobs together; None is 1 for every n.
        capacity: most jobs present; one more is refused.
    """

    limit: int | None = None
    speed: Callable[[int], float] | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; at least one job must be served")
        _check_capacity(self.capacity)

    def build(self, env: simpy.Environment, on_end: OnEnd) -> Station:
        return SharingStation(env, self, on_end)


@dataclass(frozen=True)
class Batches:
    """Batch service: a free server takes all that wait (at most ``most``) and serves them together for a time given by
    their number; the jobs' own services do not matter.

    Attributes:
        seconds: of a batch of n; ``lambda n: alpha * n + tau0`` is Inoue's model (Queueing Systems 98, 2021).
        most: largest batch; None is no limit.
    """

    seconds: Callable[[int], float]
    most: int | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        if self.most is not None and self.most < 1:
            raise ValueError(f"most is {self.most}; a batch holds at least one job")
        _check_capacity(self.capacity)

    def build(self, env: simpy.Environment, on_end: OnEnd) -> Station:
        return BatchStation(env, self, on_end)


StationSpec = Servers | Sharing | Batches


class ServerStation:
    """See :class:`Servers`."""

    def __init__(self, env: simpy.Environment, spec: Servers, on_end: OnEnd) -> None:
        self._env = env
        self._spec = spec
        self._on_end = on_end
        self._line: list[tuple[float, int, Job]] = []
        self._order = count()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._line)

    def arrive(self, job: Job) -> None:
        if self.running < self._spec.count:
            self.running += 1
            self._begin(job)
        else:
            order = next(self._order)
            key = {"fcfs": 0.0, "lcfs": -float(order), "priority": job.priority, "sjf": job.service_s}[self._spec.order]
            heapq.heappush(self._line, (key, order, job))

    def _begin(self, job: Job) -> None:
        job.begin_s = self._env.now
        self._env.timeout(job.service_s, job).callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        job = event.value
        job.end_s = self._env.now
        if self._line:
            self._begin(heapq.heappop(self._line)[2])
        else:
            self.running -= 1
        self._on_end(job)


class SharingStation:
    """See :class:`Sharing`. Keeps the service that each job in service has had since the start of time ("virtual time"): all
    get the same, so the next to end is the one whose start plus service is least."""

    def __init__(self, env: simpy.Environment, spec: Sharing, on_end: OnEnd) -> None:
        self._env = env
        self._limit = math.inf if spec.limit is None else spec.limit
        self._speed = spec.speed or (lambda n: 1.0)
        self._on_end = on_end
        self._line: deque[Job] = deque()
        self._served: list[tuple[float, int, Job]] = []
        self._order = count()
        self._given_s = 0.0
        self._since_s = 0.0
        self._next: simpy.Event | None = None

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def running(self) -> int:
        return len(self._served)

    def arrive(self, job: Job) -> None:
        if len(self._served) < self._limit:
            self._advance()
            self._begin(job)
            self._plan()
        else:
            self._line.append(job)

    def _share(self) -> float:
        """Seconds of service a second for each job in service."""
        n = len(self._served)
        return self._speed(n) / n

    def _advance(self) -> None:
        if self._served:
            self._given_s += (self._env.now - self._since_s) * self._share()
        self._since_s = self._env.now

    def _begin(self, job: Job) -> None:
        job.begin_s = self._env.now
        heapq.heappush(self._served, (self._given_s + job.service_s, next(self._order), job))

    def _plan(self) -> None:
        self._next = None
        if self._served:
            left_s = max(0.0, self._served[0][0] - self._given_s)
            self._next = self._env.timeout(left_s / self._share())
            self._next.callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        if event is not self._next:  # somebody came in between
            return
        self._advance()
        self._given_s = self._served[0][0]  # exactly, whatever rounding the sums have
        job = heapq.heappop(self._served)[2]
        job.end_s = self._env.now
        if self._line:
            self._begin(self._line.popleft())
        self._plan()
        self._on_end(job)


class BatchStation:
    """See :class:`Batches`."""

    def __init__(self, env: simpy.Environment, spec: Batches, on_end: OnEnd) -> None:
        self._env = env
        self._seconds = spec.seconds
        self._most = spec.most
        self._on_end = on_end
        self._line: deque[Job] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._line)

    def arrive(self, job: Job) -> None:
        self._line.append(job)
        if not self.running:
            self._begin()

    def _begin(self) -> None:
        size = len(self._line) if self._most is None else min(self._most, len(self._line))
        batch = [self._line.popleft() for _ in range(size)]
        for job in batch:
            job.begin_s = self._env.now
        self.running = size
        self._env.timeout(self._seconds(size), batch).callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        self.running = 0
        if self._line:
            self._begin()
        for job in event.value:
            job.end_s = self._env.now
            self._on_end(job)


def _check_capacity(capacity: int | None) -> None:
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity is {capacity}; it counts those in service and must be at least 1")
