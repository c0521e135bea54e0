"""The queues that the generator's benchmark offers its load to: what theory says of them, and what became of one run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.queues import MD1, MM1, MMc
from analysis.simulation.recursions import kiefer_wolfowitz

Array = NDArray[np.float64]

LOADS = (0.5, 0.8, 0.9)


@dataclass(frozen=True)
class Queue:
    """One cell: Poisson arrivals, ``c`` servers, exponential or fixed service times, mean service time 1."""

    name: str
    c: int
    exponential: bool
    load: float

    @property
    def title(self) -> str:
        return f"{self.name}, rho {self.load}"

    def services(self, n: int, rng: np.random.Generator) -> Array:
        return rng.exponential(size=n) if self.exponential else np.ones(n)

    @property
    def mean_wait(self) -> float:
        """In steady state, in mean service times."""
        if not self.exponential:
            return float(MD1(self.load, 1.0).Wq)
        return float(MM1(self.load, 1.0).Wq if self.c == 1 else MMc(self.load * self.c, 1.0, self.c).Wq)


QUEUES = {
    queue.title: queue
    for queue in (
        Queue(name, c, exponential, load)
        for name, c, exponential in (("M/M/1", 1, True), ("M/D/1", 1, False), ("M/M/3", 3, True))
        for load in LOADS
    )
}


@dataclass(frozen=True)
class Waits:
    """Mean waits of one run, in seconds, told apart by who says so.

    Attributes:
        claimed: by the client's stamps: finished - intended - service.
        exact: of these arrivals and services in a queue that is told of each arrival at once (Kiefer-Wolfowitz recursion):
            what an instrument without faults would have claimed.
        stub: by the stub's own stamps: start of service - receipt.
        sending: part of claimed - exact that comes from sending late (the later queue included).
        stamping: the rest: answers noticed after they were due.
    """

    claimed: float
    exact: float
    stub: float
    sending: float
    stamping: float

    @classmethod
    def of(
        cls, queue: Queue, services: Array, intended: Array, received: Array, started: Array, finished: Array
    ) -> Waits:
        """From the stamps of one run (seconds, in order of arrival) whose service times were ``services``."""
        exact = float(kiefer_wolfowitz(intended, services, queue.c).mean())
        claimed = float((finished - intended - services).mean())
        sending = float((started - intended).mean()) - exact
        return cls(claimed, exact, float((started - received).mean()), sending, claimed - exact - sending)


def wait_band(queue: Queue, n: int, draws: int, confidence: float, seed: int) -> tuple[float, float]:
    """Where the mean wait of ``n`` requests, begun empty, lies with probability ``confidence``; in mean service times.

    ``draws`` runs at once by the Kiefer-Wolfowitz recursion; the logarithms of their means are nearly normal, and the band is
    that of the normal law.
    """
    rng = np.random.default_rng(seed)
    free_in = np.zeros((draws, queue.c))  # work left on each server, least first
    total = np.zeros(draws)
    for begin in range(0, n, 200):
        count = min(200, n - begin)
        gaps = rng.exponential(1 / (queue.load * queue.c), (count, draws))
        services = rng.exponential(size=(count, draws)) if queue.exponential else np.ones((count, draws))
        for gap, service in zip(gaps, services, strict=True):
            total += free_in[:, 0]
            free_in[:, 0] += service
            if queue.c > 1:
                free_in.sort(axis=1)
            free_in -= gap[:, None]
            np.maximum(free_in, 0.0, out=free_in)
    logs = np.log(total / n)
    reach = stats.norm.ppf(0.5 + confidence / 2) * logs.std(ddof=1)
    return float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach))
