"""M/D/1 and M/D/c: constant service times, with the whole waiting-time distribution and no alternating series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, xlogy

from analysis.queues.base import FIXED, ONE_SERVER, POISSON, SERVERS, OpenQueue, positive, require_stable, whole
from analysis.queues.service_base import Floats


@dataclass(frozen=True)
class MDc(OpenQueue):
    """M/D/c: c servers, one queue, every service takes D seconds.

    Let M be the number waiting at an arbitrary moment. Over one service time, M becomes max(M + A - c, 0) with A Poisson
    of mean lam D; and P(W > t) = P(M + Poisson(lam u) >= k c), where t + u = k D is the next multiple of D after t
    (Franx, Operations Research Letters 29 (2001) 221-229). M is the maximum of a random walk, so that Spitzer's identity
    gives its law as a compound Poisson with positive terms, found with one discrete Fourier transform: nothing
    cancels, also at load .99 and c = 100, where the classical series (Erlang, Crommelin) is useless in doubles.

    Fails when service times vary at all by more than a few per cent: see ``MG1``, ``GGc``.

    >>> q = MDc(lam=1.8, D=1.0, c=2)
    >>> round(q.wait_tail(1.0), 6), round(q.Wq, 6)
    (0.588027, 2.146923)
    """

    lam: float
    D: float
    c: int
    assumptions: ClassVar[tuple[str, ...]] = (POISSON, FIXED, *SERVERS)

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("D", self.D)
        whole("c", self.c)
        require_stable("M/D/c", self.rho, f"lower lam below c / D = {self.c / self.D:.6g} or add servers")

    @property
    def rho(self) -> float:
        return self.lam * self.D / self.c

    @cached_property
    def _log_tau(self) -> float:
        """log of the root tau > 1 of tau^c = exp(a (tau - 1)): P(M >= m) falls like tau^-m."""
        # With x = log tau: rho (e^x - 1) = x, x > 0; the root lies beyond the minimum at -log rho.
        rho = self.rho
        low = -math.log(rho)
        high = 2.0 * low + 1.0
        while rho * math.expm1(high) < high:
            high *= 2.0
        return float(brentq(lambda x: rho * math.expm1(x) - x, low, high, xtol=1e-300, rtol=1e-14))

    @cached_property
    def _waiting(self) -> Floats:
        """P(M >= m) for m = 0, 1, ...; the last two entries continue geometrically."""
        a, c, x = self.lam * self.D, self.c, self._log_tau
        # Both sides decay like exp(-x/2) per index on the circle of radius exp(x/2); 80 = -log 1e-35.
        size = 1 << math.ceil(math.log2(max(80.0 / x, 16.0 * c, 256.0)))
        if size > 1 << 22:
            raise NotImplementedError(
                f"load {self.rho:.9g} is too near 1 for the exact law: use the decay rate, or GGc"
            )
        z = np.exp(0.5 * x - 2j * math.pi * np.arange(size // 2 + 1) / size)
        logs = -np.log1p(-np.exp(a * (z - 1.0) - c * np.log(z)))
        positive_part = np.fft.irfft(logs, size)[: size // 2]
        half = np.exp(-0.5 * x * np.arange(size // 2))
        # Spitzer: E z^M = exp(sum over n >= 1 of s_n (z^n - 1)), s_n = sum over l of P(S_l = n) / l.
        spitzer = np.maximum(positive_part, 0.0)
        spitzer[0] = 0.0
        pmf = np.fft.irfft(np.exp(np.fft.rfft(spitzer, size) - float(spitzer @ half)), size)[: size // 2] * half
        pmf = np.maximum(pmf[: size // 4], 0.0)
        beyond = pmf[-1] * math.exp(-x) / -math.expm1(-x)
        tail = np.cumsum(np.concatenate([[beyond], pmf[::-1]]))[::-1]
        return np.asarray(tail / tail[0])

    def _waiting_tail(self, m: Floats) -> Floats:
        """P(M >= m) for whole m of any size."""
        table = self._waiting
        last = table.size - 1
        at = np.clip(m, 0, last).astype(np.int64)
        return np.asarray(table[at] * np.exp(-self._log_tau * np.maximum(m - last, 0)))

    @property
    def p_wait(self) -> float:
        """P(an arrival must wait)."""
        return self._wait_tail(0.0)

    @cached_property
    def Lq(self) -> float:
        table = self._waiting
        return float(table[1:].sum() + table[-1] * math.exp(-self._log_tau) / -math.expm1(-self._log_tau))

    @property
    def Wq(self) -> float:
        return self.Lq / self.lam

    @property
    def W(self) -> float:
        return self.Wq + self.D

    @property
    def decay_rate(self) -> float:
        return self.lam * math.expm1(self._log_tau)

    def _wait_tail(self, t: float) -> float:
        k = math.floor(t / self.D) + 1
        mean = self.lam * (k * self.D - t)
        # Poisson counts with any mass to speak of: mean + 12 standard deviations and then some.
        j = np.arange(float(int(mean + 12.0 * math.sqrt(mean) + 40)))
        poisson = np.exp(xlogy(j, mean) - mean - gammaln(j + 1))
        return float(poisson @ self._waiting_tail(k * self.c - j))

    def _sojourn_tail(self, t: float) -> float:
        return 1.0 if t < self.D else self._wait_tail(t - self.D)

    def sojourn_quantile(self, q: float) -> float:
        return self.D + self.wait_quantile(q)

    def prob(self, n: int) -> float:
        """P(n requests in system): those waiting a service time ago, plus what arrived since."""
        whole("n", n, 0)
        j = np.arange(n + 1.0)
        a = self.lam * self.D
        poisson = np.exp(xlogy(j, a) - a - gammaln(j + 1))
        m = n - j
        return float(poisson @ (self._waiting_tail(m) - self._waiting_tail(m + 1)))


class MD1(MDc):
    """M/D/1: one server, every service takes D seconds.

    Wq = rho D / (2 (1 - rho)), the Pollaczek-Khinchine mean; distribution as in ``MDc``, stable at any t and load.
    Source: Kleinrock I (1975), section 5.4-5.7; Franx (2001). For an engine with one seat and pinned lengths.

    >>> q = MD1(lam=0.5, D=1.0)
    >>> q.Wq
    0.5
    >>> round(q.wait_tail(0.5), 9)    # 1 - (1 - rho) exp(lam t) for t < D
    0.357987292
    """

    assumptions: ClassVar[tuple[str, ...]] = (POISSON, FIXED, *ONE_SERVER)

    def __init__(self, lam: float, D: float) -> None:
        super().__init__(lam, D, 1)

    def __repr__(self) -> str:
        return f"MD1(lam={self.lam!r}, D={self.D!r})"

    @property
    def Wq(self) -> float:
        return self.rho * self.D / (2.0 * (1.0 - self.rho))

    @property
    def Lq(self) -> float:
        return self.lam * self.Wq
