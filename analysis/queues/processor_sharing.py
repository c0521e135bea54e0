"""Processor sharing: everybody in the system is served at once, and slowed down by everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from analysis.queues.base import (
    EXPONENTIAL,
    FCFS,
    INDEPENDENT,
    PATIENT,
    POISSON,
    STEADY,
    OpenQueue,
    not_negative,
    positive,
    require_stable,
    whole,
)
from analysis.queues.state_dependent import StateDependent


@dataclass(frozen=True)
class PS(OpenQueue):
    """M/G/1 processor sharing, of constant total speed.

    W = E[S] / (1 - rho) for every service distribution with this mean, and a request of size x stays x / (1 - rho) on
    average (``sojourn_of``): a straight line through 0. Nobody waits: Wq = 0. Source: Kleinrock, Queueing Systems II (1976),
    section 4.4. An engine whose speed grows with the batch is load-dependent sharing: ``StateDependent``. Fails for TTFT.

    >>> q = PS(lam=0.5, ES=1.0)
    >>> q.W, q.slowdown, q.sojourn_of(3.0)
    (2.0, 2.0, 6.0)
    """

    lam: float
    ES: float
    assumptions: ClassVar[tuple[str, ...]] = (POISSON, INDEPENDENT, "all share one server equally", PATIENT, STEADY)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("ES", self.ES)
        require_stable("M/G/1 processor sharing", self.rho, f"lower lam below 1 / ES = {1.0 / self.ES:.6g}")

    @property
    def rho(self) -> float:
        return self.lam * self.ES

    @property
    def Wq(self) -> float:
        return 0.0

    @property
    def W(self) -> float:
        return self.ES / (1.0 - self.rho)

    @property
    def slowdown(self) -> float:
        """Mean sojourn over time alone, 1 / (1 - rho), the same for every size."""
        return 1.0 / (1.0 - self.rho)

    def sojourn_of(self, x: float) -> float:
        """Mean sojourn (s) of a request that would take x seconds alone."""
        return not_negative("x", x) * self.slowdown

    def prob(self, n: int) -> float:
        """P(n requests in system): geometric, whatever the service distribution."""
        return (1.0 - self.rho) * self.rho ** whole("n", n, 0)

    def _wait_tail(self, t: float) -> float:
        return 0.0

    def _sojourn_tail(self, t: float) -> float:
        raise NotImplementedError(
            "under processor sharing the sojourn's distribution depends on that of the service times, of which only the "
            "mean is given; for exponential ones: StateDependent(lam, lambda n: 1 / ES)"
        )


@dataclass(frozen=True)
class LimitedPS(OpenQueue):
    """Limited processor sharing: at most ``seats`` share one machine, the others wait first come first served.

    Args:
        lam: arrivals per second.
        ES: mean service time of a request alone on the machine (s).
        seats: most requests served at once.
        cs2: squared coefficient of variation of the service times.
        speed: total speed with n seats taken, speed(1) = 1 natural; None: 1 whatever n is.

    Exact for cs2 = 1 (birth-death). Otherwise, at constant speed, the mean of Avi-Itzhak & Halfin (1988), exact in the
    limits seats = 1 (Pollaczek-Khinchine) and seats -> inf (PS): W = (1 - rho^k) ES / (1 - rho) + rho^k E[S^2] / (2 ES (1 -
    rho)) ; ``kind`` tells. The wait has a known law for cs2 = 1 only. Fails when prefill takes much of a step.

    >>> LimitedPS(lam=0.5, ES=1.0, seats=1).Wq      # M/M/1
    1.0
    >>> LimitedPS(lam=0.5, ES=1.0, seats=4, cs2=0.0).kind
    'approximation'
    """

    lam: float
    ES: float
    seats: int
    cs2: float = 1.0
    speed: Callable[[int], float] | None = None
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        EXPONENTIAL,
        "at most `seats` share equally",
        FCFS,
        PATIENT,
        STEADY,
    )

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("ES", self.ES)
        whole("seats", self.seats)
        not_negative("cs2", self.cs2)
        if self.speed is not None and self.cs2 != 1.0:
            raise ValueError(
                f"cs2 = {self.cs2!r} with a speed that varies: only cs2 = 1 has a solution; simulate the rest"
            )
        require_stable("limited processor sharing", self.rho, "lower lam, or speed the full machine up")

    def _speed(self, n: int) -> float:
        return 1.0 if self.speed is None else positive(f"speed({n})", self.speed(n))

    @property
    def kind(self) -> str:
        """``exact`` or ``approximation``: what W and L are."""
        return "exact" if self.cs2 == 1.0 or self.seats == 1 else "approximation"

    @property
    def rho(self) -> float:
        """Load of the machine with every seat taken: lam ES / speed(seats)."""
        return self.lam * self.ES / self._speed(self.seats)

    @cached_property
    def _chain(self) -> StateDependent:
        speeds = [self._speed(n) / self.ES for n in range(1, self.seats + 1)]
        return StateDependent(self.lam, lambda n: speeds[min(n, self.seats) - 1], seats=self.seats)

    @property
    def W(self) -> float:
        if self.cs2 == 1.0:
            return self._chain.W
        full = self.rho**self.seats
        return ((1.0 - full) + full * (1.0 + self.cs2) / 2.0) * self.ES / (1.0 - self.rho)

    @property
    def Wq(self) -> float:
        if self.cs2 == 1.0:
            return self._chain.Wq
        if self.seats == 1:
            return self.W - self.ES
        raise NotImplementedError(
            "with seats > 1 and cs2 other than 1 only the mean sojourn has a formula; simulate the wait"
        )

    def prob(self, n: int) -> float:
        """P(n requests in system), for cs2 = 1."""
        self._need_exponential()
        return self._chain.prob(n)

    def _need_exponential(self) -> None:
        if self.cs2 != 1.0:
            raise NotImplementedError("distributions of limited processor sharing are known for cs2 = 1 only; simulate")

    def _wait_tail(self, t: float) -> float:
        self._need_exponential()
        return self._chain.wait_tail(t)

    def _sojourn_tail(self, t: float) -> float:
        raise NotImplementedError("the sojourn of limited processor sharing has no known law; simulate")
