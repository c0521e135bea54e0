"""Batch arrivals, M^[X]/G/1: requests come in groups at Poisson times and are served one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from analysis.queues.base import INDEPENDENT, ONE_SERVER, OpenQueue, positive, require_stable, whole
from analysis.queues.phase_type import MatrixExponential, PhaseType
from analysis.queues.service import Service, as_service
from analysis.queues.service_base import Floats


@dataclass(frozen=True, eq=False)
class BatchArrival(OpenQueue):
    """M^[X]/G/1: groups arrive as a Poisson stream, one server, first come first served, groups in random order inside.

    Args:
        lam_groups: groups per second.
        sizes: {group size: probability}.
        service: service time of one request, anything ``as_service`` takes.

    Wq = lam_groups E[X] E[S^2] / (2 (1 - rho)) + E[X(X-1)] E[S] / (2 E[X] (1 - rho)): a request waits for what is there
    and for its group before it. Source: Gross et al. (2008), section 5.1.9; Tijms (2003), section 9.3.2. With phase-type
    service the whole distribution is phase-type. ``lam`` counts requests. Fails when group sizes depend on the load.

    >>> q = BatchArrival(0.25, {2: 1.0}, service=(1.0, 2.0))
    >>> q.lam, q.Wq
    (0.5, 2.0)
    """

    lam_groups: float
    sizes: Mapping[int, float]
    service: Any
    assumptions: ClassVar[tuple[str, ...]] = ("groups arrive as a Poisson stream", INDEPENDENT, *ONE_SERVER)

    def __post_init__(self) -> None:
        positive("lam_groups", self.lam_groups)
        object.__setattr__(self, "service", as_service(self.service))
        if not self.sizes:
            raise ValueError("sizes is empty: give {group size: probability}")
        for size, p in self.sizes.items():
            whole("group size", size)
            if not 0 <= p <= 1:
                raise ValueError(f"sizes[{size}] = {p!r}: probabilities lie in [0, 1]")
        if abs(sum(self.sizes.values()) - 1) > 1e-9:
            raise ValueError(f"sizes add up to {sum(self.sizes.values())!r}: probabilities must add up to 1")
        require_stable("M^[X]/G/1", self.rho, "lower lam_groups")

    @property
    def _service(self) -> Service:
        service: Service = self.service
        return service

    def _factorial_moment(self) -> tuple[float, float]:
        mean = sum(p * n for n, p in self.sizes.items())
        return mean, sum(p * n * (n - 1) for n, p in self.sizes.items())

    @property
    def lam(self) -> float:  # type: ignore[override]
        """Requests per second."""
        return self.lam_groups * self._factorial_moment()[0]

    @property
    def rho(self) -> float:
        return self.lam * self._service.mean

    @property
    def Wq(self) -> float:
        mean, pairs = self._factorial_moment()
        work = self.lam * self._service.second + pairs / mean * self._service.mean
        return work / (2.0 * (1.0 - self.rho))

    @property
    def W(self) -> float:
        return self.Wq + self._service.mean

    @cached_property
    def _tails(self) -> tuple[MatrixExponential, MatrixExponential]:
        service = self._service
        if not isinstance(service, PhaseType):
            raise NotImplementedError(
                "the waiting-time distribution with batch arrivals is given for phase-type service only: "
                "describe the service time as (alpha, T), for example with two_moment, or simulate"
            )
        alpha, T, exits = service.start, service.generator, service.exits
        m, top = alpha.size, max(self.sizes)
        # A line of `top` services: block i is the i-th from the end; starting at block n makes n services in a row.
        line: Floats = (np.kron(np.eye(top), T) + np.kron(np.eye(top, k=-1), np.outer(exits, alpha))).astype(np.float64)
        leave = np.concatenate([exits, np.zeros((top - 1) * m)])
        pmf = np.array([self.sizes.get(n, 0.0) for n in range(1, top + 1)])
        ahead = np.array([pmf[n:].sum() for n in range(top)]) / self._factorial_moment()[0]
        group = np.asarray(np.linalg.solve(-line.T, np.kron(pmf, alpha)))
        rho = self.rho
        residual = group / group.sum()
        delay = line + rho * np.outer(leave, residual)
        before: Floats = np.concatenate([np.kron(ahead[1:], alpha), np.zeros(m)])
        wait = _then((rho * residual, delay, (1.0 - rho) * leave), (before, line))
        after: Floats = np.kron(ahead, alpha).astype(np.float64)  # those ahead in the group and the request itself
        sojourn = _then((rho * residual, delay, (1.0 - rho) * leave), (after, line))
        return wait, sojourn

    def _wait_tail(self, t: float) -> float:
        return self._tails[0](t)

    def _sojourn_tail(self, t: float) -> float:
        return self._tails[1](t)


def _then(first: tuple[Floats, Floats, Floats], second: tuple[Floats, Floats]) -> MatrixExponential:
    """Tail of a phase-type time (start, generator, exits; the missing mass is 0 s) followed by another one."""
    start, B, leave = first
    begin, T = second
    n, m = start.size, begin.size
    both = np.block([[B, np.outer(leave, begin)], [np.zeros((m, n)), T]])
    return MatrixExponential(np.concatenate([start, (1.0 - start.sum()) * begin]), both, np.ones(n + m))
