"""Textbook queues simulated event by event, as a run with the same tables as a measured one.

For teaching, and as the independent check of the closed forms in ``analysis.queues``. Long runs of plain FCFS servers are
faster in ``analysis.simulation.recursions``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pandas as pd
import simpy
from numpy.typing import ArrayLike, NDArray

from analysis.runs import Run
from analysis.simulation.routing import ROUTINGS, Routing, chooser
from analysis.simulation.stations import Job, Servers, Station, StationSpec
from analysis.simulation.tables import frame, memory_run
from engine.recorder import GAUGE

Floats = NDArray[np.float64]
QueueRouting = Literal[Routing, "fork_join"]


def simulate_queue(
    arrivals: ArrayLike,
    services: ArrayLike,
    station: StationSpec = Servers(),  # noqa: B008  (frozen)
    *,
    priorities: ArrayLike | None = None,
    replicas: int = 1,
    routing: QueueRouting = "random",
    seed: int = 0,
    warmup_s: float = 0.0,
) -> Run:
    """Send jobs through one station or several equal ones.

    Args:
        arrivals: times of arrival, ascending, seconds: (n,).
        services: seconds of service that each job asks for: (n,); with ``fork_join`` (n, replicas), one a leg.
        station: ``Servers`` (G/G/c/K, priorities), ``Sharing`` (processor sharing, limited, load-dependent) or ``Batches``.
        priorities: lower first, where the station's order is ``priority``: (n,).
        replicas: equal stations, each with a line of its own.
        routing: which of them a job goes to: ``random``, ``round_robin``, ``jsq`` (fewest jobs present, ties at random),
            ``power_of_two`` (the emptier of two taken at random), or ``fork_join``: one leg to each, done with the last.
        seed: of the routing.
        warmup_s: jobs that arrive before this are in phase ``warmup``, all others in ``measure``.

    Returns:
        A run with the tables requests (one row a job; ``wait_total`` is the time until its service began, the last leg's in
        ``fork_join``) and gauge (jobs, or legs, waiting and in service). Jobs refused by a full station have
        ``finish_reason`` ``refused``. Every other job is served to its end.
    """
    times, work = _checked(arrivals, services, replicas, routing)
    urgency = np.zeros(len(times), dtype=int) if priorities is None else np.asarray(priorities, dtype=int)
    if urgency.shape != times.shape:
        raise ValueError(f"priorities has shape {urgency.shape}; one a job is wanted: {times.shape}")
    queue = _Queue(times, work, urgency, station, replicas, routing, np.random.default_rng(seed))
    queue.env.run()
    meta = {
        "kind": "simulation",
        "status": "complete",
        "window": {"measure_start_s": warmup_s, "measure_end_s": float(times[-1]) if len(times) else warmup_s},
        "simulation": {"station": repr(station), "replicas": replicas, "routing": routing, "seed": seed},
    }
    return memory_run({"requests": queue.requests(warmup_s), "gauge": frame(queue.gauge, GAUGE)}, meta)


class _Queue:
    """The stations, the stream of arrivals and what is seen of them."""

    def __init__(
        self,
        times: Floats,
        work: Floats,
        urgency: NDArray[np.int_],
        station: StationSpec,
        replicas: int,
        routing: QueueRouting,
        rng: np.random.Generator,
    ) -> None:
        self.env = simpy.Environment()
        self.gauge: list[tuple[float, int, int, int]] = [(0.0, 0, 0, 0)]
        self._times, self._work, self._urgency = times, work, urgency
        self._capacity = math.inf if station.capacity is None else station.capacity
        self._stations: list[Station] = [station.build(self.env, self._end) for _ in range(replicas)]
        self._forks = routing == "fork_join"
        lines = [_counter(station) for station in self._stations]
        self._choose = chooser("random" if routing == "fork_join" else routing, lines, rng)
        self._legs_left = np.full(len(times), replicas if self._forks else 1)
        self._begin_s = np.full(len(times), np.nan)
        self._end_s = np.full(len(times), np.nan)
        self.env.process(self._arrivals())

    def _arrivals(self) -> Iterator[simpy.Event]:
        env = self.env
        work, urgency = self._work.tolist(), self._urgency.tolist()
        for index, time in enumerate(self._times.tolist()):
            if time > env.now:
                yield env.timeout(time - env.now)
            if self._forks:
                if all(self._has_room(station) for station in self._stations):
                    for station, leg in zip(self._stations, work[index], strict=True):
                        station.arrive(Job(index, leg, urgency[index]))
            else:
                station = self._stations[self._choose()]
                if self._has_room(station):
                    station.arrive(Job(index, work[index], urgency[index]))
            self._read_gauge()

    def _has_room(self, station: Station) -> bool:
        return station.waiting + station.running < self._capacity

    def _end(self, job: Job) -> None:
        index = job.index
        self._legs_left[index] -= 1
        if not self._legs_left[index]:
            self._begin_s[index], self._end_s[index] = job.begin_s, job.end_s
        self._read_gauge()

    def _read_gauge(self) -> None:
        if len(self._stations) == 1:
            station = self._stations[0]
            self.gauge.append((self.env.now, 0, station.waiting, station.running))
        else:
            waiting = sum(station.waiting for station in self._stations)
            self.gauge.append((self.env.now, 0, waiting, sum(station.running for station in self._stations)))

    def requests(self, warmup_s: float) -> pd.DataFrame:
        times, begin, end = self._times, self._begin_s, self._end_s
        refused = np.isnan(end)
        finished: Any = np.where(refused, times, end)
        wait = begin - times
        return pd.DataFrame(
            {
                "request_id": [str(index) for index in range(len(times))],
                "phase": np.where(times < warmup_s, "warmup", "measure"),
                "intended_s": times,
                "sent_s": times,
                "first_token_s": end,
                "last_token_s": end,
                "finished_s": finished,
                "received_s": np.where(refused, np.nan, times),
                "scheduled_s": begin,
                "emitted_first_s": end,
                "emitted_last_s": end,
                "done_s": end,
                "lag": 0.0,
                "cap_wait": 0.0,
                "wait_first": wait,
                "wait_total": wait,
                "prompt_tokens": 1,
                "output_tokens": np.where(refused, 0, 1),
                "max_tokens": 1,
                "finish_reason": np.where(refused, "refused", "length"),
                "priority": self._urgency,
            }
        )


def _counter(station: Station) -> Callable[[], int]:
    return lambda: station.waiting + station.running


def _checked(arrivals: ArrayLike, services: ArrayLike, replicas: int, routing: str) -> tuple[Floats, Floats]:
    times, work = np.asarray(arrivals, dtype=float), np.asarray(services, dtype=float)
    if routing not in (*ROUTINGS, "fork_join"):
        raise ValueError(f"routing is {routing!r}; it must be one of {', '.join(ROUTINGS)}, fork_join")
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; there must be at least 1")
    wanted = (len(times), replicas) if routing == "fork_join" else (len(times),)
    if times.ndim != 1 or work.shape != wanted:
        raise ValueError(f"services has shape {work.shape}; for {len(times)} arrivals {wanted} is wanted")
    if not (np.isfinite(times).all() and np.isfinite(work).all() and (work >= 0).all() and (times >= 0).all()):
        raise ValueError("arrivals and services must be finite and not negative")
    if (np.diff(times) < 0).any():
        raise ValueError("arrivals must ascend")
    return times, work
