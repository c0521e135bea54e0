"""Erlang's formulas B and C and the queues behind them: M/M/1, M/M/c, M/M/c/K."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaln, pdtr, xlogy

from analysis.queues.base import (
    EXPONENTIAL,
    FCFS,
    ONE_SERVER,
    POISSON,
    SERVERS,
    STEADY,
    OpenQueue,
    not_negative,
    positive,
    require_stable,
    whole,
)
from analysis.queues.service_base import Floats


def erlang_b(c: int, a: float) -> float:
    """P(all c servers busy) when blocked requests are lost, offered load a = lam E[S] >= 0 (Erlang).

    B(0) = 1, B(k) = a B(k-1) / (k + a B(k-1)): all terms positive, no factorials (Cooper, Introduction to Queueing
    Theory, 1981, section 3.3). Holds for any service distribution with this mean. Fails for bursty arrivals.

    >>> erlang_b(2, 1.0)
    0.2
    """
    whole("c", c, 0)
    not_negative("a", a)
    b = 1.0
    for k in range(1, c + 1):
        b = a * b / (k + a * b)
    return b


def erlang_c(c: int, a: float) -> float:
    """P(an arrival must wait) in M/M/c, offered load a = lam / mu < c erlangs.

    C = B / (1 - (a/c)(1 - B)) with Erlang's B (Cooper 1981, section 3.4); C = rho at c = 1. Fails where service is not
    exponential (for c > 1) or arrivals come in bursts.

    Raises:
        UnstableQueueError: a >= c.

    >>> round(erlang_c(2, 1.0), 12)
    0.333333333333
    """
    whole("c", c)
    not_negative("a", a)
    require_stable("erlang_c", a / c, f"give more than a = {a:.6g} servers")
    b = erlang_b(c, a)
    return b / (1.0 - (a / c) * (1.0 - b))


@dataclass(frozen=True)
class MMc(OpenQueue):
    """M/M/c: c servers, one queue, exponential service at rate mu each.

    Wait: P(W > t) = C exp(-(c mu - lam) t) with Erlang's C; mean C / (c mu - lam). Source: Kleinrock, Queueing Systems
    I (1975), section 3.5. Fails for LLM seats: a sequence in a batch slows the others down, so c seats are not c servers.

    >>> q = MMc(lam=1.5, mu=1.0, c=2)
    >>> round(q.Wq, 9), round(q.wait_quantile(0.99), 6)
    (1.285714286, 8.326675)
    """

    lam: float
    mu: float
    c: int
    assumptions: ClassVar[tuple[str, ...]] = (POISSON, EXPONENTIAL, *SERVERS)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("mu", self.mu)
        whole("c", self.c)
        require_stable("M/M/c", self.rho, f"lower lam below c mu = {self.c * self.mu:.6g} or add servers")

    @property
    def rho(self) -> float:
        return self.lam / (self.c * self.mu)

    @property
    def offered(self) -> float:
        """Offered load a = lam / mu (erlangs), the mean number of busy servers."""
        return self.lam / self.mu

    @cached_property
    def p_wait(self) -> float:
        """P(an arrival must wait), Erlang's C."""
        return erlang_c(self.c, self.offered)

    @property
    def Wq(self) -> float:
        return self.p_wait / self.decay_rate

    @property
    def W(self) -> float:
        return self.Wq + 1.0 / self.mu

    @property
    def decay_rate(self) -> float:
        return self.c * self.mu - self.lam

    def _wait_tail(self, t: float) -> float:
        return self.p_wait * math.exp(-self.decay_rate * t)

    def _sojourn_tail(self, t: float) -> float:
        # Wait and service overlap in one exponential when c mu - lam = mu; expm1 carries the limit.
        gap = self.decay_rate - self.mu
        extra = t if gap * t == 0 else -math.expm1(-gap * t) / gap
        return math.exp(-self.mu * t) * (1.0 + self.p_wait * self.mu * extra)

    def wait_quantile(self, q: float) -> float:
        if not 0 < q < 1:
            return super().wait_quantile(q)
        return max(math.log(self.p_wait / (1.0 - q)) / self.decay_rate, 0.0) if self.p_wait > 0 else 0.0

    def prob(self, n: int) -> float:
        """P(n requests in system)."""
        whole("n", n, 0)
        # p_c from Erlang's C, then down or up: no factorial and no power of a large number.
        p_c = self.p_wait * (1.0 - self.rho)
        if n >= self.c:
            return p_c * self.rho ** (n - self.c)
        if p_c == 0:
            return math.exp(xlogy(n, self.offered) - self.offered - gammaln(n + 1))
        log_ratio = gammaln(self.c + 1) - gammaln(n + 1) - (self.c - n) * math.log(self.offered)
        return math.exp(math.log(p_c) + log_ratio)


class MM1(MMc):
    """M/M/1: one server, exponential service at rate mu.

    W = 1/(mu - lam); P(W > t) = rho exp(-(mu - lam) t); sojourn exponential. Source: Kleinrock I (1975), section 3.2.
    Fails when service times vary less or more than exponential ones: see ``MG1``.

    >>> q = MM1(lam=0.5, mu=1.0)
    >>> q.L, q.W, q.Wq, q.prob(0)
    (1.0, 2.0, 1.0, 0.5)
    """

    assumptions: ClassVar[tuple[str, ...]] = (POISSON, EXPONENTIAL, *ONE_SERVER)

    def __init__(self, lam: float, mu: float) -> None:
        super().__init__(lam, mu, 1)

    def __repr__(self) -> str:
        return f"MM1(lam={self.lam!r}, mu={self.mu!r})"

    def sojourn_quantile(self, q: float) -> float:
        return -math.log1p(-q) / self.decay_rate if 0 < q < 1 else super().sojourn_quantile(q)


@dataclass(frozen=True)
class MMcK(OpenQueue):
    """M/M/c/K: as M/M/c, but an arrival that finds K in system (those in service included) is refused.

    Has a steady state at every load. Wait and sojourn are those of *accepted* requests, an arrival finding n >= c waiting
    for n - c + 1 departures: an Erlang mixture, all terms positive. Source: Gross et al., Fundamentals of Queueing
    Theory (4th ed., 2008), section 2.5. Fails when refused requests come back.

    >>> q = MMcK(lam=1.0, mu=1.0, c=1, K=2)
    >>> round(q.blocking, 12), round(q.L, 12)
    (0.333333333333, 1.0)
    """

    lam: float
    mu: float
    c: int
    K: int
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        EXPONENTIAL,
        "c servers that do not slow each other",
        FCFS,
        "arrivals that find K in system are refused and do not return",
        STEADY,
    )

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("mu", self.mu)
        whole("c", self.c)
        whole("K", self.K)
        if self.c > self.K:
            raise ValueError(f"K = {self.K} is below c = {self.c}: K counts those in service; give K >= c")

    @cached_property
    def _probabilities(self) -> Floats:
        n = np.arange(1, self.K + 1)
        logs = np.concatenate([[0.0], np.cumsum(math.log(self.lam / self.mu) - np.log(np.minimum(n, self.c)))])
        p = np.exp(logs - logs.max())
        return np.asarray(p / p.sum())

    def prob(self, n: int) -> float:
        """P(n requests in system), 0 above K."""
        whole("n", n, 0)
        return float(self._probabilities[n]) if n <= self.K else 0.0

    @property
    def rho(self) -> float:
        return self.lam / (self.c * self.mu)

    @property
    def blocking(self) -> float:
        """P(an arrival is refused)."""
        return float(self._probabilities[-1])

    @property
    def lam_eff(self) -> float:
        return self.lam * float(self._probabilities[:-1].sum())

    @cached_property
    def Lq(self) -> float:
        return float(self._probabilities[self.c :] @ np.arange(self.K - self.c + 1))

    @property
    def Wq(self) -> float:
        return self.Lq / self.lam_eff

    @property
    def W(self) -> float:
        return self.Wq + 1.0 / self.mu

    @cached_property
    def _ahead(self) -> Floats:
        """P(an accepted arrival must wait for more than j departures), j = 0.. K - c."""
        found = self._probabilities[self.c : self.K] / self._probabilities[: self.K].sum()
        return np.concatenate([np.cumsum(found[::-1])[::-1], [0.0]])

    def _wait_tail(self, t: float) -> float:
        # The wait exceeds t if fewer departures fell into t than the arrival must wait for.
        x = self.c * self.mu * t
        j = np.arange(self._ahead.size)
        return float(np.exp(xlogy(j, x) - x - gammaln(j + 1)) @ self._ahead)

    def _sojourn_tail(self, t: float) -> float:
        # c = 1: one more departure to wait for. c > 1: the wait, then an independent service, by the Poisson count m
        # of departures in t and a service that begins at the j-th of them.
        if self.c == 1:
            found = self._probabilities[: self.K] / self._probabilities[: self.K].sum()
            return float(found @ pdtr(np.arange(self.K), self.mu * t))
        immediate = 1.0 - float(self._ahead[0])
        found = self._ahead[:-1] - self._ahead[1:]
        return (
            self._wait_tail(t)
            + immediate * math.exp(-self.mu * t)
            + float(found @ _erlang_then_service(np.arange(1.0, found.size + 1), self.c * self.mu, self.mu, t))
        )


def _erlang_then_service(stages: Floats, rate: float, mu: float, t: float) -> Floats:
    """P(Erlang(stages, rate) <= t < Erlang + exponential(mu)), for rate > mu."""
    # Integral of the Erlang density times exp(-mu (t - x)): an Erlang distribution function at rate - mu.
    slower = rate - mu
    inside = gammainc(stages, slower * t)
    seen = inside > 0
    logs = stages * math.log(rate / slower) - mu * t + np.log(np.where(seen, inside, 1.0))
    return np.where(seen, np.exp(logs), 0.0)
