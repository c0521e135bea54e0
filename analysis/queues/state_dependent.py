"""Birth-death queues: a service rate that depends on how many are in the system, as a batching engine's does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import gammaln, xlogy

from analysis.queues.base import EXPONENTIAL, POISSON, STEADY, OpenQueue, UnstableQueueError, positive, whole
from analysis.queues.service_base import Floats

_MOST_STATES = 200_000
_MOST_SHARED = 3_000


@dataclass(frozen=True)
class StateDependent(OpenQueue):
    """Birth-death queue: Poisson arrivals, total completion rate mu_of_n(n) while n are in the system.

    Args:
        lam: arrivals per second.
        mu_of_n: n = 1, 2, ... -> completions per second; must not fall for ever (it is evaluated until the rest of the
            distribution is negligible given the last ratio).
        K: most requests in system, more are refused; None: no limit.
        seats: how many are served at once, the others wait first come first served; None: all are (processor sharing).

    p_n = p_0 prod lam / mu_of_n(i) (Kleinrock I, 1975, section 3.1). Means hold for any service distribution when all
    share equally (seats None; insensitivity, Kelly 1979); otherwise, and for distributions, service is exponential. The
    sojourn of an equal sharer is the absorption time of its own birth-death chain (a symmetrisable tridiagonal generator).

    Fails for TTFT (the first step is not shared in proportion), and once preemption makes work depend on history.

    >>> q = StateDependent(1.5, lambda n: min(n, 2) * 1.0, seats=2)     # M/M/2
    >>> round(q.Wq, 9)
    1.285714286
    """

    lam: float
    mu_of_n: Callable[[int], float]
    K: int | None = None
    seats: int | None = None
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        EXPONENTIAL,
        "completion rate set by the number in system alone",
        "who is served shares equally",
        STEADY,
    )

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        if self.K is not None:
            whole("K", self.K)
        if self.seats is not None:
            whole("seats", self.seats)
        if not callable(self.mu_of_n):
            raise ValueError(f"mu_of_n = {self.mu_of_n!r}: give a function n -> completions per second")
        if self.K is None:
            _ = self._probabilities  # an unstable queue is refused where it is made

    def _rate(self, n: int) -> float:
        rate = float(self.mu_of_n(n))
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"mu_of_n({n}) = {rate!r}: completion rates must be finite and above 0 for n >= 1")
        return rate

    @cached_property
    def _probabilities(self) -> Floats:
        logs, log_p, top, total = [0.0], 0.0, 0.0, 1.0
        for n in range(1, (_MOST_STATES if self.K is None else self.K) + 1):
            ratio = self.lam / self._rate(n)
            log_p += math.log(ratio)
            if log_p > top:
                total, top = total * math.exp(top - log_p), log_p
            total += math.exp(log_p - top)
            logs.append(log_p)
            # What is left is at most geometric, if the rate does not fall again.
            if self.K is None and ratio < 1 and log_p - top + math.log(ratio / (1 - ratio)) < math.log(total) - 41:
                break
        else:
            if self.K is None:
                raise UnstableQueueError(
                    f"birth-death queue: lam = {self.lam:.6g} against a completion rate of {self._rate(_MOST_STATES):.6g} at "
                    f"n = {_MOST_STATES}: no steady state found; lower lam below the limit of mu_of_n, or give K"
                )
        p = np.exp(np.array(logs) - top)
        return np.asarray(p / p.sum())

    def prob(self, n: int) -> float:
        """P(n requests in system)."""
        whole("n", n, 0)
        if n < self._probabilities.size:
            return float(self._probabilities[n])
        if self.K is not None:
            return 0.0
        p = float(self._probabilities[-1])
        for i in range(self._probabilities.size, n + 1):
            p *= self.lam / self._rate(i)
        return p

    @property
    def blocking(self) -> float:
        """P(an arrival is refused); 0 without K."""
        return 0.0 if self.K is None else float(self._probabilities[-1])

    @property
    def lam_eff(self) -> float:
        return self.lam if self.K is None else self.lam * float(self._probabilities[:-1].sum())

    @property
    def rho(self) -> float:
        """Share of time with somebody in system, 1 - p_0 (there is no fixed server to load)."""
        return float(self._probabilities[1:].sum())

    @cached_property
    def L(self) -> float:
        return float(self._probabilities @ np.arange(self._probabilities.size))

    @cached_property
    def Lq(self) -> float:
        if self.seats is None:
            return 0.0
        return float(self._probabilities @ np.maximum(np.arange(self._probabilities.size) - self.seats, 0))

    @property
    def W(self) -> float:
        return self.L / self.lam_eff

    @property
    def Wq(self) -> float:
        return self.Lq / self.lam_eff

    @cached_property
    def _found(self) -> Floats:
        """P(an accepted arrival finds n in system)."""
        p = self._probabilities if self.K is None else self._probabilities[:-1]
        return np.asarray(p / p.sum())

    def _wait_tail(self, t: float) -> float:
        if self.seats is None:
            return 0.0
        rate, more = self._queue
        j = np.arange(more.size)
        return float(np.exp(xlogy(j, rate * t) - rate * t - gammaln(j + 1)) @ more)

    @cached_property
    def _queue(self) -> tuple[float, Floats]:
        """Completion rate with all seats taken, and P(an arrival must wait for more than j completions)."""
        seats = self._probabilities.size if self.seats is None else self.seats
        rates = {self._rate(n) for n in range(seats, self._probabilities.size)}
        if len(rates) > 1:
            raise NotImplementedError(
                "the wait has a known law only if the completion rate is constant once the seats are full"
            )
        return (rates.pop() if rates else 0.0), np.cumsum(self._found[seats:][::-1])[::-1]

    @cached_property
    def _sharing(self) -> tuple[Floats, Floats]:
        """Decay rates and weights: P(sojourn > t) = sum of weights exp(-rates t), when all share equally."""
        # The tail falls by 1e-18 in p; beyond the states kept, arrivals to the tagged request's chain are refused.
        size = self._probabilities.size - (0 if self.K is None else 1)
        if size > _MOST_SHARED:
            raise NotImplementedError(f"{size} states are too many for the sojourn distribution: lower lam, or give K")
        n = np.arange(1, size + 1)
        mu = np.array([self._rate(int(i)) for i in n])
        up = np.full(size, self.lam)
        up[-1] = 0.0
        down = mu * (n - 1) / n
        # Reversible with weights w, w_n lam = w_(n+1) down_(n+1): symmetric after scaling by sqrt(w).
        log_w = np.concatenate([[0.0], np.cumsum(math.log(self.lam) - np.log(down[1:]))])
        half = 0.5 * (log_w - log_w.max())
        values, vectors = eigh_tridiagonal(-(up + mu), np.sqrt(up[:-1] * down[1:]))
        start = np.exp(np.log(np.maximum(self._found, 1e-300)) - half)
        left = start @ vectors
        right = np.exp(half) @ vectors
        return np.asarray(-values), np.asarray(left * right)

    def _sojourn_tail(self, t: float) -> float:
        if self.seats is not None and self.seats < self._probabilities.size - 1:
            raise NotImplementedError(
                "the sojourn has a known law only if nobody waits for a seat (seats=None), or in MMc"
            )
        rates, weights = self._sharing
        return float(weights @ np.exp(-rates * t))
