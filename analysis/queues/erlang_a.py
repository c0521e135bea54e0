"""Erlang A: many servers, exponential service, and people who give up waiting."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaln

from analysis.queues.base import EXPONENTIAL, FCFS, POISSON, STEADY, OpenQueue, not_negative, positive, whole
from analysis.queues.erlang import erlang_b
from analysis.queues.service_base import NODES, WEIGHTS, Floats


@dataclass(frozen=True)
class ErlangA(OpenQueue):
    """M/M/c+M (Erlang A, Palm): as M/M/c, but who waits leaves after an exponential patience of rate theta.

    Has a steady state at every load. Wait and sojourn are those of *all* requests, those that leave included; ``wait_tail``
    is the time in queue. Built on the positive series A = sum over j of prod (lam / (c mu + i theta)), which does not
    cancel up to c = 10,000. Source: Zeltyn & Mandelbaum, Queueing Systems 51 (2005), section 5; Palm (1957). Fails when
    patience is not exponential (hazard at zero is what matters most).

    >>> q = ErlangA(lam=2.0, mu=1.0, c=2, theta=0.5)
    >>> round(q.p_wait, 6), round(q.abandonment, 6)
    (0.659077, 0.227282)
    """

    lam: float
    mu: float
    c: int
    theta: float
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        EXPONENTIAL,
        "c servers that do not slow each other",
        FCFS,
        "exponential patience while waiting, none in service",
        STEADY,
    )

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("mu", self.mu)
        whole("c", self.c)
        positive("theta", self.theta)

    @property
    def rho(self) -> float:
        return self.lam / (self.c * self.mu)

    @cached_property
    def _log_series(self) -> float:
        return _log_series(self.c * self.mu / self.theta, self.lam / self.theta)

    @cached_property
    def p_wait(self) -> float:
        """P(an arrival finds all servers busy)."""
        b = erlang_b(self.c, self.lam / self.mu)
        if b == 0:
            return 0.0
        others = 1.0 / b - 1.0
        return 1.0 / (1.0 + others * math.exp(-self._log_series))

    @cached_property
    def abandonment(self) -> float:
        """P(an arrival leaves without service)."""
        if self.rho >= 1:
            given = 1.0 - 1.0 / self.rho + math.exp(-self._log_series) / self.rho
        else:
            # P(leave | wait) = theta E[queue | wait] / lam as a positive series: the closed form cancels for rho < 1.
            s, x = self.c * self.mu / self.theta, self.lam / self.theta
            terms, _ = _terms(s, x)
            given = float(terms @ np.arange(terms.size)) / (x * float(terms.sum()))
        return self.p_wait * given

    @property
    def throughput(self) -> float:
        """Requests served per second."""
        return self.lam * (1.0 - self.abandonment)

    @property
    def Wq(self) -> float:
        return self.abandonment / self.theta

    @property
    def W(self) -> float:
        return self.Wq + (1.0 - self.abandonment) / self.mu

    def offered_wait_tail(self, t: float) -> float:
        """P(a request of infinite patience would wait > t)."""
        not_negative("t", t)
        s, x = self.c * self.mu / self.theta, self.lam / self.theta
        shrunk = x * math.exp(-self.theta * t)
        # Density lam p_(c-1) exp(lam (1 - exp(-theta u)) / theta - c mu u), its integral from t over that from 0.
        log_ratio = (x - shrunk) - self.c * self.mu * t + _log_series(s, shrunk) - self._log_series
        return self.p_wait * math.exp(min(log_ratio, 0.0))

    def _wait_tail(self, t: float) -> float:
        return self.offered_wait_tail(t) * math.exp(-self.theta * t)

    def _sojourn_tail(self, t: float) -> float:
        # exp(-mu t) + (mu - theta) * integral of G(x) exp(-theta x - mu (t - x)), G the offered wait's tail (by parts).
        edges, sums = self._overlap
        i = int(np.searchsorted(edges, t, side="right")) - 1
        since = sums[i] * math.exp(-self.mu * (t - edges[i]))
        if i < edges.size - 1:
            since += self._overlap_panel(float(edges[i]), t)
        return math.exp(-self.mu * t) + (self.mu - self.theta) * since

    def _overlap_panel(self, a: float, b: float) -> float:
        """Integral of G(x) exp(-theta x - mu (b - x)) over [a, b], the wait's tail against the service after it."""
        x = a + (b - a) * NODES
        inside = np.array([self._wait_tail(y) for y in x.tolist()]) * np.exp(-self.mu * (b - x))
        return (b - a) * float(WEIGHTS @ inside)

    @cached_property
    def _overlap(self) -> tuple[Floats, Floats]:
        """Panel edges, graded from one departure to where nobody waits any more, and the integral from 0 to each."""
        step = 0.5 / (self.c * self.mu)
        end = step
        while self._wait_tail(end) > 1e-17:
            end *= 2.0
        edges = np.concatenate([[0.0], np.geomspace(step, 2.0 * end, 8 + 4 * max(round(math.log2(end / step)), 0))])
        sums = [0.0]
        for a, b in itertools.pairwise(edges.tolist()):
            sums.append(sums[-1] * math.exp(-self.mu * (b - a)) + self._overlap_panel(a, b))
        return edges, np.array(sums)


def _terms(s: float, x: float) -> tuple[Floats, float]:
    """x^j / ((s+1)...(s+j)), j = 0, 1, ... until negligible, divided by the largest; and the log of the largest."""
    if x == 0:
        return np.ones(1), 0.0
    # The terms grow while s + j < x and fall ever faster after that.
    count = int(max(x - s, 0.0)) + 64
    while True:
        logs = np.concatenate([[0.0], np.cumsum(math.log(x) - np.log(s + np.arange(1, count)))])
        top = float(logs.max())
        if logs[-1] < top - 42:
            return np.exp(logs - top), top
        count *= 2


def _log_series(s: float, x: float) -> float:
    """log of sum over j >= 0 of x^j / ((s+1)...(s+j)), which is Kummer's M(1, s+1, x)."""
    if x - s > 1e5:
        # A long rise: the closed form s x^-s e^x gamma(s, x), whose rounding is small beside its size.
        return float(gammaln(s + 1) - s * math.log(x) + x + math.log(gammainc(s, x)))
    terms, top = _terms(s, x)
    return top + math.log(float(terms.sum()))
