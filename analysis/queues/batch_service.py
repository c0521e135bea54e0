"""Batch service: the server takes everybody who waits (or as many as fit) and takes longer for more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, gammaln, xlogy

from analysis.queues.base import (
    FCFS,
    PATIENT,
    POISSON,
    STEADY,
    OpenQueue,
    not_negative,
    positive,
    require_stable,
    whole,
)
from analysis.queues.service_base import Floats

_MOST_STATES = 4000


@dataclass(frozen=True)
class BatchService(OpenQueue):
    """Batch service whose time is linear in the batch: alpha b + tau0 seconds for b requests, taken when the server is free.

    Args:
        lam: arrivals per second.
        alpha: seconds a request adds to its batch.
        tau0: seconds a batch takes besides.
        cap: most requests in a batch; None: all who wait are taken (Inoue's model).

    The number present when a service starts is a Markov chain, solved exactly; waits follow from it, a request found
    in mid-service waiting for the rest of it and for the full batches ahead. ``mean_bound`` is the closed form of Inoue,
    "Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching", Performance Evaluation 147 (2021), an upper
    bound on W without a cap. With a cap this is Bailey's chain (J. Royal Stat. Soc. B 16 (1954) 80-87).

    For ``static_batch`` with pinned outputs. Fails for random outputs (a batch lasts as long as its longest) and for
    continuous batching, where nobody waits for a batch to end.

    >>> q = BatchService(lam=5.0, alpha=0.05, tau0=0.2)
    >>> round(q.W, 6), round(q.mean_bound, 6)
    (0.436073, 0.46)
    """

    lam: float
    alpha: float
    tau0: float
    cap: int | None = None
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        "batch time linear in the batch size and nothing else",
        "a free server takes all who wait, up to its cap",
        FCFS,
        PATIENT,
        STEADY,
    )

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        not_negative("alpha", self.alpha)
        not_negative("tau0", self.tau0)
        if self.alpha + self.tau0 == 0:
            raise ValueError("alpha = tau0 = 0: batches must take time; give at least one above 0")
        if self.cap is not None:
            whole("cap", self.cap)
        require_stable("batch service", self.rho, "lower lam, alpha or tau0, or raise the cap")

    def _time(self, b: Floats) -> Floats:
        return self.alpha * b + self.tau0

    @property
    def rho(self) -> float:
        """Load: lam over the largest rate, that of full batches (of unlimited ones: 1 / alpha)."""
        if self.cap is None:
            return self.lam * self.alpha
        return self.lam * (self.alpha * self.cap + self.tau0) / self.cap

    @property
    def _states(self) -> int:
        if self.cap is None:
            mean = (self.lam * self.tau0 + 1.0) / (1.0 - self.rho)
            spread = math.sqrt(mean / (1.0 - self.rho**2))
            return int(mean + 12.0 * spread + 60)
        # Far above the cap the number present falls geometrically, with the root above 1 of z^cap = exp(a (z - 1)).
        a = self.rho * self.cap
        high = 1.0 - math.log(self.rho)
        while a * math.expm1(high) < self.cap * high:
            high *= 2.0
        x = float(brentq(lambda y: a * math.expm1(y) - self.cap * y, -math.log(self.rho), high)) if high > 0 else 1.0
        return int(2 * self.cap + a + 12.0 * math.sqrt(a) + 40.0 / x + 60)

    @cached_property
    def _chain(self) -> tuple[Floats, Floats, Floats]:
        """P(q present at a service's start), batch taken, and P(k arrivals meanwhile | q): shapes (n,), (n,), (n, n + 1)."""
        n = self._states
        if n > _MOST_STATES:
            raise NotImplementedError(
                f"the chain needs {n} states (more than {_MOST_STATES}): the load is too near 1; use mean_bound or simulate"
            )
        present = np.arange(1.0, n + 1)
        batch = present if self.cap is None else np.minimum(present, float(self.cap))
        mean = self.lam * self._time(batch)
        k = np.arange(float(n + 1))
        arrivals = np.exp(xlogy(k, mean[:, None]) - mean[:, None] - gammaln(k + 1))
        P = np.zeros((n, n))
        for i in range(n):
            left = int(present[i] - batch[i])
            row = np.zeros(n + 1)
            row[left:] = arrivals[i, : n + 1 - left]
            P[i] = row[1:]
            P[i, 0] += row[0]  # nobody there: the next service starts with the next arrival
            P[i, -1] += max(1.0 - P[i].sum(), 0.0)
        A = P.T - np.eye(n)
        A[-1] = 1.0
        right = np.zeros(n)
        right[-1] = 1.0
        law = np.maximum(np.linalg.solve(A, right), 0.0)
        return law / law.sum(), batch, arrivals

    @cached_property
    def mean_batch(self) -> float:
        """Mean requests in a batch."""
        law, batch, _ = self._chain
        return float(law @ batch)

    @property
    def busy(self) -> float:
        """Share of time the server works."""
        law, batch, _ = self._chain
        return self.lam * float(law @ self._time(batch)) / self.mean_batch

    @cached_property
    def Wq(self) -> float:
        law, batch, _ = self._chain
        time = self._time(batch)
        left = np.arange(1.0, law.size + 1) - batch
        return float(law @ (left * time + 0.5 * self.lam * time**2)) / self.mean_batch

    @property
    def W(self) -> float:
        law, batch, _ = self._chain
        return self.Wq + float(law @ (batch * self._time(batch))) / self.mean_batch

    @property
    def mean_bound(self) -> float:
        """Inoue's closed-form upper bound on W (no cap)."""
        if self.cap is not None:
            raise NotImplementedError("the closed-form bound holds without a cap; W solves the chain with one")
        a, t, load = self.alpha, self.tau0, self.lam * self.alpha
        low = (a + t) / (2.0 * (1.0 - load)) * (1.0 + 2.0 * self.lam * t + (1.0 - self.lam * t) / (1.0 + load))
        high = 1.5 * t / (1.0 - load) + 0.5 * a * (load + 2.0) / (1.0 - load**2)
        return min(low, high)

    def _wait_tail(self, t: float) -> float:
        law, batch, _ = self._chain
        time = self._time(batch)
        if self.cap is None:
            return self.lam * float(law @ np.maximum(time - t, 0.0)) / self.mean_batch
        # An arrival with `left + k` before it, k counted from the service's start, waits for the rest of that service
        # and for (left + k) // cap full batches; the k-th arrival comes before u with probability gammainc(k + 1, lam u).
        full = self.alpha * self.cap + self.tau0
        k = np.arange(int(full * self.lam + 12.0 * math.sqrt(full * self.lam) + 40))
        small = min(self.cap - 1, law.size)  # batches below the cap leave nobody behind
        until = np.clip(time[:small, None] - t + k // self.cap * full, 0.0, time[:small, None])
        total = float(law[:small] @ gammainc(k + 1.0, self.lam * until).sum(axis=1))
        left = np.arange(law.size - small)
        batches = np.arange((left.size + k.size) // self.cap + 1)
        table = gammainc(k + 1.0, self.lam * np.clip(full - t + batches * full, 0.0, full)[:, None])
        total += float(law[small:] @ table[(left[:, None] + k) // self.cap, k].sum(axis=1))
        return total / self.mean_batch

    def _sojourn_tail(self, t: float) -> float:
        if self.cap is not None:
            raise NotImplementedError(
                "with a cap the sojourn depends on who arrives later; W and the wait's law are known"
            )
        law, batch, arrivals = self._chain
        time = self._time(batch)
        # Found in mid-service: the rest of it is uniform, then a batch of the arrival and a Poisson number of others.
        own = self._time(np.arange(1.0, arrivals.shape[1] + 1))
        over = np.clip(time[:, None] - t + own, 0.0, time[:, None])
        alone = float(law @ arrivals[:, 0]) if self.alpha + self.tau0 > t else 0.0
        return (alone + self.lam * float(law @ (arrivals * over).sum(axis=1))) / self.mean_batch
