"""GI/M/1: independent gaps of any distribution, exponential service."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from scipy.optimize import brentq

from analysis.queues.base import EXPONENTIAL, ONE_SERVER, RENEWAL, OpenQueue, positive, require_stable, whole
from analysis.queues.service import Service, as_service


@dataclass(frozen=True, eq=False)
class GIM1(OpenQueue):
    """GI/M/1: one server, exponential service at rate mu, independent gaps between arrivals.

    Args:
        interarrival: the gap distribution (s), anything ``as_service`` takes but bare moments.
        mu: services per second.

    sigma in (0, 1) solves sigma = A*(mu (1 - sigma)), A* the transform of the gaps; an arrival waits with probability
    sigma, the sojourn is exponential with rate mu (1 - sigma): P(W > t) = sigma exp(-mu (1 - sigma) t). Source: Kleinrock
    I (1975), section 6.4. Fails for correlated gaps (MMPP, traces): see ``MMPP1``.

    >>> q = GIM1(([1.0], [[-0.5]]), mu=1.0)       # exponential gaps of mean 2: M/M/1
    >>> round(q.sigma, 12), round(q.W, 12)
    (0.5, 2.0)
    """

    interarrival: Any
    mu: float
    assumptions: ClassVar[tuple[str, ...]] = (RENEWAL, EXPONENTIAL, *ONE_SERVER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interarrival", as_service(self.interarrival))
        positive("mu", self.mu)
        require_stable("GI/M/1", self.rho, f"raise mu above {self.lam:.6g} or lengthen the gaps")

    @property
    def _gaps(self) -> Service:
        gaps: Service = self.interarrival
        return gaps

    @property
    def lam(self) -> float:  # type: ignore[override]
        """Arrivals per second, 1 / mean gap."""
        return 1.0 / self._gaps.mean

    @property
    def rho(self) -> float:
        return self.lam / self.mu

    @cached_property
    def decay_rate(self) -> float:
        # In s = mu (1 - sigma): 1 - s/mu = A*(s), i.e. transform of the gap's tail at s equals 1/mu.
        def excess(s: float) -> float:
            return float(self._gaps.tail_transform(s).real[0]) - 1.0 / self.mu

        # At s = mu the left side is (1 - A*(mu)) / mu < 1/mu; near 0 it is the mean gap > 1/mu.
        low = self.mu
        while excess(low) <= 0:
            low *= 0.5
        return float(brentq(excess, low, min(2.0 * low, self.mu), xtol=1e-300, rtol=1e-14))

    @property
    def sigma(self) -> float:
        """P(an arrival must wait)."""
        return 1.0 - self.decay_rate / self.mu

    @property
    def Wq(self) -> float:
        return self.sigma / self.decay_rate

    @property
    def W(self) -> float:
        return 1.0 / self.decay_rate

    def _wait_tail(self, t: float) -> float:
        return self.sigma * math.exp(-self.decay_rate * t)

    def _sojourn_tail(self, t: float) -> float:
        return math.exp(-self.decay_rate * t)

    def prob(self, n: int) -> float:
        """P(n requests in system) at an arbitrary moment: 1 - rho, then rho (1 - sigma) sigma^(n-1)."""
        whole("n", n, 0)
        return 1.0 - self.rho if n == 0 else self.rho * (1.0 - self.sigma) * self.sigma ** (n - 1)

    def prob_at_arrival(self, n: int) -> float:
        """P(an arrival finds n requests in system): (1 - sigma) sigma^n."""
        whole("n", n, 0)
        return (1.0 - self.sigma) * self.sigma**n
