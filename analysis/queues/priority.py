"""M/G/1 with priority classes (Cobham): who is more important goes first, with or without interrupting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from analysis.queues.base import INDEPENDENT, PATIENT, POISSON, STEADY, OpenQueue, positive, require_stable
from analysis.queues.service import Service, as_service


@dataclass(frozen=True, eq=False)
class Priority(OpenQueue):
    """M/G/1 with classes, class 0 first; first come first served inside a class.

    Args:
        lams: arrivals per second of each class, most important first.
        services: service time of each class, anything ``as_service`` takes.
        preemptive: False: a service once begun is finished; True: interrupted by a higher class and resumed later.

    Non-preemptive: Wq_k = W0 / ((1 - s_(k-1)) (1 - s_k)), W0 = sum lam E[S^2] / 2, s_k the load of classes 0..k (Cobham,
    Operations Research 2 (1954) 70-76). Preemptive-resume: W_k = E[S_k] / (1 - s_(k-1)) + W0_k / ((1 - s_(k-1)) (1 -
    s_k)), W0_k over classes 0..k only (Kleinrock II, 1976, section 3.5); then Wq = W - E[S] holds interruptions too.
    Fails when preempted work is lost and done again, as with recomputation.

    >>> q = Priority([0.2, 0.3], [(1.0, 2.0), (1.0, 2.0)])
    >>> [round(w, 6) for w in q.Wq_by_class]
    [0.625, 1.25]
    """

    lams: Sequence[float]
    services: Sequence[Any]
    preemptive: bool = False
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        INDEPENDENT,
        "one server",
        "higher classes first, first come first served inside a class",
        PATIENT,
        STEADY,
    )

    def __post_init__(self) -> None:
        if len(self.lams) != len(self.services) or not len(self.lams):
            raise ValueError(f"{len(self.lams)} lams and {len(self.services)} services: give one of each per class")
        object.__setattr__(self, "lams", tuple(positive("lam", x) for x in self.lams))
        object.__setattr__(self, "services", tuple(as_service(s) for s in self.services))
        require_stable("M/G/1 with priorities", self.rho, "lower the rates")

    @property
    def _services(self) -> tuple[Service, ...]:
        return tuple(self.services)

    @property
    def lam(self) -> float:  # type: ignore[override]
        """Arrivals per second of all classes."""
        return sum(self.lams)

    @property
    def rho(self) -> float:
        return sum(x * s.mean for x, s in zip(self.lams, self._services, strict=True))

    @cached_property
    def Wq_by_class(self) -> tuple[float, ...]:
        """Mean wait of each class (s); with preemption the interruptions count as waiting."""
        return tuple(w - s.mean for w, s in zip(self.W_by_class, self._services, strict=True))

    @cached_property
    def W_by_class(self) -> tuple[float, ...]:
        """Mean sojourn of each class (s)."""
        lams = np.array(self.lams)
        means = np.array([s.mean for s in self._services])
        residual = 0.5 * lams * np.array([s.second for s in self._services])
        upto = np.cumsum(lams * means)
        above = np.concatenate([[0.0], upto[:-1]])
        if self.preemptive:
            sojourn = means / (1.0 - above) + np.cumsum(residual) / ((1.0 - above) * (1.0 - upto))
        else:
            sojourn = means + residual.sum() / ((1.0 - above) * (1.0 - upto))
        return tuple(float(w) for w in sojourn)

    def _average(self, values: tuple[float, ...]) -> float:
        return sum(x * w for x, w in zip(self.lams, values, strict=True)) / self.lam

    @property
    def Wq(self) -> float:
        """Mean wait over all requests (s)."""
        return self._average(self.Wq_by_class)

    @property
    def W(self) -> float:
        """Mean sojourn over all requests (s)."""
        return self._average(self.W_by_class)

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError(
            "only the mean waits of priority classes have a closed form here; simulate their tails"
        )

    _sojourn_tail = _wait_tail
