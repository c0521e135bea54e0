"""Closed loops: N users who think and ask again; exact mean-value analysis, and one station whose rate depends on n."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from analysis.queues.base import EXPONENTIAL, not_negative, positive, whole
from analysis.queues.service_base import Floats


@dataclass(frozen=True)
class ClosedNetwork:
    """Closed product-form network of single-server stations and a think time, one class, by exact MVA.

    Args:
        N: users (requests in circulation).
        Z: mean think time (s), 0 for none.
        demands: mean seconds of service a request needs at each station, in all its visits; a mapping gives names.

    R_k(n) = D_k (1 + Q_k(n - 1)), X(n) = n / (Z + sum R_k(n)), Q_k(n) = X(n) R_k(n) (Reiser & Lavenberg, JACM 27 (1980)
    313-322). Stations are first come first served with exponential service, or processor sharing with any. N = X (R + Z)
    is an identity here. ``bounds`` are Denning & Buzen's asymptotes (1978).

    Fails for batching engines, whose rate grows with n: see ``ClosedStation``; never use open formulas for a closed loop.

    >>> net = ClosedNetwork(N=3, Z=2.0, demands={"gpu": 1.0, "cpu": 0.5})
    >>> round(net.X, 6), round(net.R, 6)
    (0.695279, 2.314815)
    """

    N: int
    Z: float
    demands: Sequence[float] | Mapping[str, float]
    assumptions: ClassVar[tuple[str, ...]] = (
        "a fixed number of users, each with one request at a time",
        "product form: exponential service or processor sharing",
        "one server per station, of constant speed",
    )

    def __post_init__(self) -> None:
        whole("N", self.N)
        not_negative("Z", self.Z)
        if not len(self.demands):
            raise ValueError("demands is empty: give seconds of service per request, at least one station")
        for name, demand in zip(self.stations, self._demands, strict=True):
            not_negative(f"demand of {name}", demand)
        if self._demands.sum() == 0:
            raise ValueError("all demands are 0: some station must serve")

    @property
    def stations(self) -> tuple[str, ...]:
        """Names of the stations, in the order given."""
        if isinstance(self.demands, Mapping):
            return tuple(self.demands)
        return tuple(f"station {i}" for i in range(len(self.demands)))

    @cached_property
    def _demands(self) -> Floats:
        values = self.demands.values() if isinstance(self.demands, Mapping) else self.demands
        return np.array([float(d) for d in values])

    @cached_property
    def _solution(self) -> tuple[Floats, Floats, Floats]:
        """X(n) for n = 1..N, and R_k, Q_k at N."""
        queue = np.zeros_like(self._demands)
        throughputs = np.empty(self.N)
        for n in range(1, self.N + 1):
            residence = self._demands * (1.0 + queue)
            throughputs[n - 1] = n / (self.Z + residence.sum())
            queue = throughputs[n - 1] * residence
        return throughputs, residence, queue

    @property
    def throughputs(self) -> Floats:
        """X(n) for n = 1..N users (1/s)."""
        return self._solution[0]

    @property
    def X(self) -> float:
        """Completions per second."""
        return float(self._solution[0][-1])

    @property
    def R(self) -> float:
        """Mean response: time in all stations, without thinking (s)."""
        return float(self._solution[1].sum())

    @property
    def residence(self) -> dict[str, float]:
        """Mean seconds a request spends at each station."""
        return dict(zip(self.stations, self._solution[1].tolist(), strict=True))

    @property
    def Q(self) -> dict[str, float]:
        """Mean number at each station."""
        return dict(zip(self.stations, self._solution[2].tolist(), strict=True))

    @property
    def utilization(self) -> dict[str, float]:
        """Share of time each station is busy, X D_k."""
        return dict(zip(self.stations, (self.X * self._demands).tolist(), strict=True))

    @property
    def bottleneck(self) -> str:
        """Station with the largest demand."""
        return self.stations[int(self._demands.argmax())]

    @property
    def knee(self) -> float:
        """Users at which the asymptotes cross: (Z + sum D) / max D."""
        return float((self.Z + self._demands.sum()) / self._demands.max())

    @property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound on X: N / (Z + N sum D) and min(1 / max D, N / (Z + sum D))."""
        total = float(self._demands.sum())
        lower = self.N / (self.Z + self.N * total)
        return lower, min(1.0 / float(self._demands.max()), self.N / (self.Z + total))


@dataclass(frozen=True)
class ClosedStation:
    """N users who think for exponential times of mean Z, one station of completion rate mu_of_n(n): birth-death, exact.

    Args:
        N: users.
        Z: mean think time (s), above 0.
        mu_of_n: n = 1..N in the station -> completions per second (an engine: n / step time).
        seats: how many are served at once, the others wait; None: all.

    p_n = p_0 prod_(i <= n) (N - i + 1) / (Z mu_of_n(i)) (machine repair with many repairmen; Gross et al., 2008, section
    2.8). Insensitive to the distribution of thinking; of service when all share equally. Fails for fixed think times
    that keep users in step.

    >>> c = ClosedStation(N=3, Z=2.0, mu_of_n=lambda n: 1.0)
    >>> round(c.X, 9), round(c.R, 9)
    (0.789473684, 1.8)
    """

    N: int
    Z: float
    mu_of_n: Callable[[int], float]
    seats: int | None = None
    assumptions: ClassVar[tuple[str, ...]] = (
        "a fixed number of users, each with one request at a time",
        "independent think times",
        EXPONENTIAL,
        "completion rate set by the number in the station alone",
    )

    def __post_init__(self) -> None:
        whole("N", self.N)
        positive("Z", self.Z)
        if self.seats is not None:
            whole("seats", self.seats)

    @cached_property
    def _probabilities(self) -> Floats:
        rates = [positive(f"mu_of_n({n})", self.mu_of_n(n)) for n in range(1, self.N + 1)]
        steps = [math.log((self.N - i) / (self.Z * rate)) for i, rate in enumerate(rates)]
        logs = np.concatenate([[0.0], np.cumsum(steps)])
        p = np.exp(logs - logs.max())
        return np.asarray(p / p.sum())

    def prob(self, n: int) -> float:
        """P(n requests in the station)."""
        whole("n", n, 0)
        return float(self._probabilities[n]) if n <= self.N else 0.0

    @cached_property
    def L(self) -> float:
        """Mean number in the station."""
        return float(self._probabilities @ np.arange(self.N + 1))

    @property
    def X(self) -> float:
        """Completions per second, (N - L) / Z."""
        return float(self._probabilities @ (self.N - np.arange(self.N + 1))) / self.Z

    @property
    def R(self) -> float:
        """Mean response (s): L / X = N / X - Z."""
        return self.L / self.X

    @property
    def Lq(self) -> float:
        """Mean number waiting for a seat."""
        if self.seats is None:
            return 0.0
        return float(self._probabilities @ np.maximum(np.arange(self.N + 1) - self.seats, 0))

    @property
    def Wq(self) -> float:
        """Mean wait for a seat (s)."""
        return self.Lq / self.X
