"""GI/G/1 and GI/G/c from two moments of gaps and service times: approximations and bounds, never mixed up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from analysis.queues.base import (
    INDEPENDENT,
    ONE_SERVER,
    RENEWAL,
    SERVERS,
    OpenQueue,
    not_negative,
    positive,
    require_stable,
    whole,
)
from analysis.queues.erlang import erlang_c

APPROXIMATION = "approximation"
UPPER_BOUND = "upper bound"

_SINGLE = {
    "klb": APPROXIMATION,
    "marchal": APPROXIMATION,
    "heavy-traffic": APPROXIMATION,
    "kingman": UPPER_BOUND,
    "daley": UPPER_BOUND,
}
_MANY = {
    "allen-cunneen": APPROXIMATION,
    "sakasegawa": APPROXIMATION,
    "klb": APPROXIMATION,
    "kingman": UPPER_BOUND,
}


def _known(method: str, methods: dict[str, str]) -> None:
    if method not in methods:
        raise ValueError(f"method = {method!r}: one of {', '.join(f'{m} ({kind})' for m, kind in methods.items())}")


def _klb_factor(rho: float, ca2: float, cs2: float) -> float:
    if ca2 + cs2 == 0:
        return 0.0
    if ca2 < 1:
        return math.exp(-2.0 * (1.0 - rho) * (1.0 - ca2) ** 2 / (3.0 * rho * (ca2 + cs2)))
    return math.exp(-(1.0 - rho) * (ca2 - 1.0) / (ca2 + 4.0 * cs2))


@dataclass(frozen=True)
class GG1(OpenQueue):
    """GI/G/1 by two moments: mean wait only.

    Args:
        lam: arrivals per second.
        ES: mean service time (s).
        ca2, cs2: squared coefficients of variation of gaps and service times.
        method: ``klb`` (Krämer & Langenbach-Belz 1976), ``marchal`` (1976), ``heavy-traffic`` (the Pollaczek-Khinchine
            mean with (ca2 + cs2)/2, often called Kingman's approximation): *approximations*; ``kingman`` (Kingman 1962,
            lam (var gap + var S) / (2 (1 - rho))), ``daley`` (1977, its sharper form): *upper bounds*. ``kind`` tells.

    klb, marchal, heavy-traffic are exact for M/G/1. Source: Bolch et al., Queueing Networks and Markov Chains (2nd ed.,
    2006), section 6.3.4; Daley (1977). Fails for correlated gaps: MMPP arrivals of the same ca2 wait 2-5 times longer.

    >>> q = GG1(lam=0.8, ES=1.0, ca2=0.5, cs2=1.5)
    >>> q.kind, round(q.Wq, 4)
    ('approximation', 3.9175)
    >>> bound = GG1(0.8, 1.0, 0.5, 1.5, method="kingman")
    >>> bound.kind, round(bound.Wq, 4)
    ('upper bound', 4.5625)
    """

    lam: float
    ES: float
    ca2: float
    cs2: float
    method: str = "klb"
    assumptions: ClassVar[tuple[str, ...]] = (RENEWAL, INDEPENDENT, *ONE_SERVER)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("ES", self.ES)
        not_negative("ca2", self.ca2)
        not_negative("cs2", self.cs2)
        _known(self.method, _SINGLE)
        require_stable("GI/G/1", self.rho, f"lower lam below 1 / ES = {1.0 / self.ES:.6g}")

    @property
    def kind(self) -> str:
        """``approximation`` or ``upper bound``: what Wq, W, Lq and L are."""
        return _SINGLE[self.method]

    @property
    def rho(self) -> float:
        return self.lam * self.ES

    @property
    def Wq(self) -> float:
        rho, ca2, cs2 = self.rho, self.ca2, self.cs2
        heavy = rho / (1.0 - rho) * self.ES * (ca2 + cs2) / 2.0
        kingman = (ca2 + rho**2 * cs2) / (2.0 * self.lam * (1.0 - rho))
        if self.method == "klb":
            return heavy * _klb_factor(rho, ca2, cs2)
        if self.method == "marchal":
            return kingman * rho**2 * (1.0 + cs2) / (1.0 + rho**2 * cs2)
        if self.method == "heavy-traffic":
            return heavy
        if self.method == "kingman":
            return kingman
        return ((2.0 - rho) * rho * ca2 + rho**2 * cs2) / (2.0 * self.lam * (1.0 - rho))

    @property
    def W(self) -> float:
        return self.Wq + self.ES

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError(
            "two moments do not determine the waiting-time distribution: give distributions to MG1 or GIM1, or simulate"
        )

    _sojourn_tail = _wait_tail


@dataclass(frozen=True)
class GGc(OpenQueue):
    """GI/G/c by two moments: mean wait only.

    Args:
        lam: arrivals per second.
        ES: mean service time (s).
        c: servers.
        ca2, cs2: squared coefficients of variation of gaps and service times.
        method: ``allen-cunneen`` (Erlang-C wait of M/M/c times (ca2 + cs2)/2), ``klb`` (the same with the
            Krämer-Langenbach-Belz factor), ``sakasegawa`` (rho^(sqrt(2(c+1)) - 1) in place of Erlang's C):
            *approximations*; ``kingman`` (Kingman 1970): *upper bound*. ``kind`` tells.

    Source: Allen, Probability, Statistics and Queueing Theory (2nd ed., 1990), section 5.3; Sakasegawa (1977); Kleinrock,
    Queueing Systems II (1976), eq. 2.66. Fails for correlated gaps and for seats that share one machine.

    >>> q = GGc(lam=1.5, ES=1.0, c=2, ca2=1.0, cs2=1.0)
    >>> round(q.Wq, 9)                                    # M/M/2
    1.285714286
    """

    lam: float
    ES: float
    c: int
    ca2: float
    cs2: float
    method: str = "allen-cunneen"
    assumptions: ClassVar[tuple[str, ...]] = (RENEWAL, INDEPENDENT, *SERVERS)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("ES", self.ES)
        whole("c", self.c)
        not_negative("ca2", self.ca2)
        not_negative("cs2", self.cs2)
        _known(self.method, _MANY)
        require_stable("GI/G/c", self.rho, f"lower lam below c / ES = {self.c / self.ES:.6g} or add servers")

    @property
    def kind(self) -> str:
        """``approximation`` or ``upper bound``: what Wq, W, Lq and L are."""
        return _MANY[self.method]

    @property
    def rho(self) -> float:
        return self.lam * self.ES / self.c

    @property
    def Wq(self) -> float:
        rho, c, ca2, cs2 = self.rho, self.c, self.ca2, self.cs2
        if self.method == "kingman":
            spread = ca2 / self.lam**2 + self.ES**2 * (cs2 / c + (c - 1) / c**2)
            return self.lam * spread / (2.0 * (1.0 - rho))
        half = (ca2 + cs2) / 2.0
        if self.method == "sakasegawa":
            return half * self.ES * rho ** (math.sqrt(2.0 * (c + 1)) - 1.0) / (c * (1.0 - rho))
        allen_cunneen = half * self.ES * erlang_c(c, self.lam * self.ES) / (c * (1.0 - rho))
        return allen_cunneen * (_klb_factor(rho, ca2, cs2) if self.method == "klb" else 1.0)

    @property
    def W(self) -> float:
        return self.Wq + self.ES

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError(
            "two moments do not determine the waiting-time distribution: MMc and MDc have one, otherwise simulate"
        )

    _sojourn_tail = _wait_tail
