"""Fork-join: a request is split over n queues and done when its last part is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from analysis.queues.base import EXPONENTIAL, FCFS, PATIENT, POISSON, STEADY, OpenQueue, positive, require_stable, whole
from analysis.queues.base import quantile_of_tail as _quantile_of_tail


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n."""
    return math.fsum(1.0 / k for k in range(1, n + 1))


@dataclass(frozen=True)
class ForkJoin(OpenQueue):
    """n M/M/1 queues, a part of each arrival in every one, done when all n parts are.

    n = 1 and 2 exact: W = (12 - rho) / 8 / (mu - lam) for 2 (Flatto & Hahn 1984); n > 2 by Nelson & Tantawi, IEEE Trans.
    Computers 37 (1988) 739-743: W_n = (H_n/H_2 + (4/11) (1 - H_n/H_2) rho) W_2, fitted for n <= 32, within 5 %. ``kind``
    tells. The parts' sojourns are associated, so that independent legs bound from above: W <= H_n / (mu - lam), and the
    tail likewise (``sojourn_tail_bound``); W >= H_n / mu + rho / (mu - lam) from below. ``L`` counts whole requests.

    Fails for service that is not exponential, and for legs that share one machine.

    >>> round(ForkJoin(lam=0.5, mu=1.0, n=2).W, 9)
    2.875
    """

    lam: float
    mu: float
    n: int
    assumptions: ClassVar[tuple[str, ...]] = (POISSON, EXPONENTIAL, "n servers, one queue each", FCFS, PATIENT, STEADY)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("mu", self.mu)
        whole("n", self.n)
        require_stable("fork-join", self.rho, f"lower lam below mu = {self.mu:.6g}")

    @property
    def kind(self) -> str:
        """``exact`` or ``approximation``: what W and L are."""
        return "exact" if self.n <= 2 else "approximation"

    @property
    def rho(self) -> float:
        return self.lam / self.mu

    @property
    def Wq(self) -> float:
        if self.n == 1:
            return self.rho / (self.mu - self.lam)
        raise NotImplementedError("a request waits in n queues at once: only its sojourn W is defined")

    @property
    def W(self) -> float:
        alone = 1.0 / (self.mu - self.lam)
        if self.n == 1:
            return alone
        two = (12.0 - self.rho) / 8.0 * alone
        ratio = harmonic(self.n) / 1.5
        return (ratio + 4.0 / 11.0 * (1.0 - ratio) * self.rho) * two

    @property
    def W_upper(self) -> float:
        """Upper bound on W: independent legs, H_n / (mu - lam)."""
        return harmonic(self.n) / (self.mu - self.lam)

    @property
    def W_lower(self) -> float:
        """Lower bound on W: H_n / mu + rho / (mu - lam) (one common wait, then independent services)."""
        return harmonic(self.n) / self.mu + self.rho / (self.mu - self.lam)

    def _wait_tail(self, t: float) -> float:
        if self.n == 1:
            return self.rho * math.exp(-(self.mu - self.lam) * t)
        raise NotImplementedError("a request waits in n queues at once: only its sojourn is defined")

    def _sojourn_tail(self, t: float) -> float:
        if self.n == 1:
            return math.exp(-(self.mu - self.lam) * t)
        raise NotImplementedError("the sojourn of a fork-join has no known law for n > 1: see sojourn_tail_bound")

    def sojourn_tail_bound(self, t: float) -> float:
        """Upper bound on P(sojourn > t): independent legs, 1 - (1 - exp(-(mu - lam) t))^n."""
        if t <= 0:
            return 1.0
        return -math.expm1(self.n * math.log(-math.expm1(-(self.mu - self.lam) * t)))

    def sojourn_quantile_bound(self, q: float) -> float:
        """Upper bound on the sojourn's q-quantile (s)."""
        return _quantile_of_tail(self.sojourn_tail_bound, q, self.W_upper)
