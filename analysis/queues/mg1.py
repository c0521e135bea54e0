"""M/G/1, first come first served: Pollaczek-Khinchine means and the whole distributions of wait and sojourn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from analysis.queues.base import INDEPENDENT, ONE_SERVER, POISSON, OpenQueue, positive, require_stable
from analysis.queues.deterministic import MD1
from analysis.queues.inversion import CELLS, Stretch, Stretches, euler, mg1_stretch
from analysis.queues.phase_type import MatrixExponential, PhaseType
from analysis.queues.service import Deterministic, Moments, Sample, Service, as_service
from analysis.queues.service_base import Complexes

_FLOOR = 1e-11


@dataclass(frozen=True, eq=False)
class PoissonGeneral(OpenQueue):
    """What M/G/1 is in every order of service: Poisson arrivals at one server with service times of any law."""

    lam: float
    service: Any

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        object.__setattr__(self, "service", as_service(self.service))
        require_stable(type(self).__name__, self.rho, f"lower lam below 1 / E[S] = {1.0 / self._service.mean:.6g}")

    @property
    def _service(self) -> Service:
        service: Service = self.service
        return service

    @property
    def rho(self) -> float:
        return self.lam * self._service.mean


@dataclass(frozen=True, eq=False)
class MG1(PoissonGeneral):
    """M/G/1: Poisson arrivals, one server, independent service times of any distribution.

    Args:
        lam: arrivals per second.
        service: anything ``as_service`` takes: moments, phase-type, a frozen scipy distribution, or measured times.

    Wq = lam E[S^2] / (2 (1 - rho)); var Wq = lam E[S^3] / (3 (1 - rho)) + Wq^2 (Pollaczek-Khinchine; Kleinrock I, 1975,
    section 5.7). Waits: with phase-type service a matrix exponential (partial fractions); with constant service ``MD1``;
    otherwise two independent inversions, a lattice solution of the renewal equation and Euler's summation of the
    transform, which must agree (to 1e-4 of the value; for data to 1e-4) or an ``ArithmeticError`` says so; they resolve
    tails down to 1e-11, and for data of few distinct values the tail right at its kinks to 3e-4. Moments alone give means
    only.

    Fails when arrivals are burstier than Poisson (``MMPP1``), when successive service times are correlated, or when
    requests share the server (``PS``).

    >>> q = MG1(lam=0.5, service=(1.0, 2.0))      # E[S] = 1, E[S^2] = 2: the moments of an exponential
    >>> q.Wq, q.W
    (1.0, 2.0)
    >>> from scipy import stats
    >>> round(MG1(0.5, stats.uniform(0.5, 1.0)).wait_quantile(0.99), 4)
    3.6903
    """

    assumptions: ClassVar[tuple[str, ...]] = (POISSON, INDEPENDENT, *ONE_SERVER)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._service.second  # no variance, no queue

    @property
    def Wq(self) -> float:
        return self.lam * self._service.second / (2.0 * (1.0 - self.rho))

    @property
    def W(self) -> float:
        return self.Wq + self._service.mean

    @property
    def var_wait(self) -> float:
        """Variance of the wait before service (s^2); needs E[S^3]."""
        return self.lam * self._service.third / (3.0 * (1.0 - self.rho)) + self.Wq**2

    @property
    def var_sojourn(self) -> float:
        """Variance of the sojourn (s^2); needs E[S^3]."""
        return self.var_wait + self._service.second - self._service.mean**2

    @cached_property
    def _tails(self) -> tuple[Callable[[float], float], Callable[[float], float]]:
        service = self._service
        if isinstance(service, Moments):
            raise NotImplementedError(
                "the waiting-time distribution of M/G/1 needs the whole service distribution, not its moments: give "
                "phase-type (alpha, T), a frozen scipy.stats distribution, or data"
            )
        if isinstance(service, Deterministic):
            exact = MD1(self.lam, service.D)
            return exact._wait_tail, exact._sojourn_tail
        if isinstance(service, PhaseType):
            return _phase_type_tails(self.lam, service)
        # Euler's summation rings at atoms, of which data consists.
        numeric = Inverted(self.lam, service, tolerance=1e-4 if isinstance(service, Sample) else 3e-7)
        return numeric.wait, numeric.sojourn

    def _wait_tail(self, t: float) -> float:
        return self._tails[0](t)

    def _sojourn_tail(self, t: float) -> float:
        return self._tails[1](t)

    def wait_quantile(self, q: float) -> float:
        self._resolved(q)
        return super().wait_quantile(q)

    def sojourn_quantile(self, q: float) -> float:
        self._resolved(q)
        return super().sojourn_quantile(q)

    def _resolved(self, q: float) -> None:
        if q < 1 and 1.0 - q < _FLOOR and not isinstance(self._service, (Moments, Deterministic, PhaseType)):
            raise NotImplementedError(
                f"numerical inversion resolves tails down to {_FLOOR:g}, not {1.0 - q:.3g}: use phase-type service, or the "
                "decay rate"
            )

    @cached_property
    def decay_rate(self) -> float:
        # Root s > 0 of lam * integral of exp(s x) P(S > x) dx = 1 (Lundberg's equation).
        limit = self._service.light_tail_limit
        low, high = 0.0, min(0.5 * limit, (1.0 - self.rho) / self.Wq)
        while self.lam * self._service.mgf_tail(high) < 1.0:
            low, high = high, 0.5 * (high + limit) if math.isfinite(limit) else 2.0 * high
            if high >= limit * (1 - 1e-12):
                raise NotImplementedError("Lundberg's equation has no root: the service tail itself rules the wait")
        return float(
            brentq(lambda s: self.lam * self._service.mgf_tail(s) - 1.0, low, high, xtol=1e-13 * high, rtol=1e-13)
        )


def _phase_type_tails(lam: float, service: PhaseType) -> tuple[MatrixExponential, MatrixExponential]:
    """The wait is phase-type (rho pi, T + lam' ...): a geometric number of residual services (Neuts 1981, section 5.1)."""
    alpha, T, exits = service.start, service.generator, service.exits
    m = alpha.size
    rho = lam * service.mean
    residual = service.occupation / service.mean
    B = T + rho * np.outer(exits, residual)
    wait = MatrixExponential(rho * residual, B, np.ones(m))
    # Sojourn: from the wait (or at once) into one service.
    exits_of_wait = exits * (1.0 - rho)
    both = np.block([[B, np.outer(exits_of_wait, alpha)], [np.zeros((m, m)), T]])
    sojourn = MatrixExponential(np.concatenate([rho * residual, (1.0 - rho) * alpha]), both, np.ones(2 * m))
    return wait, sojourn


class Inverted:
    """Wait and sojourn tails of M/G/1 by lattice, each stretch checked against Euler's inversion of the transform.

    Args:
        tolerance: difference allowed between the two, beside 1e-4 of the value and what the lattice's own two step
            sizes differ by.
    """

    def __init__(self, lam: float, service: Service, tolerance: float = 3e-7) -> None:
        self._lam, self._service, self._tolerance = lam, service, tolerance
        self._built: dict[float, Stretch] = {}
        mean_sojourn = MG1(lam, service).W
        first = max(16.0 * service.mean, 8.0 * mean_sojourn)
        self.wait = Stretches(lambda end: self._stretch(end).wait, first)
        self.sojourn = Stretches(lambda end: self._stretch(end).sojourn, first)

    def _stretch(self, end: float) -> Stretch:
        if end not in self._built:
            h = end / CELLS
            sf = self._service.sf(np.arange(CELLS + 1) * h)
            stretch = mg1_stretch(self._lam, self._service.mean, self._service.cells(h, CELLS), sf, h)
            self._check(stretch)
            self._built[end] = stretch
        return self._built[end]

    def _check(self, stretch: Stretch) -> None:
        n = stretch.wait.size - 1
        for part in (0.37, 0.83):
            at = round(part * n)
            t = stretch.end * at / n
            other = euler(self.transform, t)
            # Relative in the tail, down to what Euler's summation resolves.
            allowed = self._tolerance + 1e-4 * stretch.wait[at] + stretch.change[at]
            if abs(other - stretch.wait[at]) > allowed:
                raise ArithmeticError(
                    f"two inversions of the M/G/1 wait disagree at t = {t:.6g} s: lattice {float(stretch.wait[at]):.9g}, "
                    f"Euler {other:.9g}; describe the service time as phase-type, or by data"
                )

    def transform(self, s: Complexes) -> Complexes:
        """Laplace transform of P(W > t): rho (1 - r) / (s (1 - rho r)), r the transform of the residual service time."""
        r = self._service.tail_transform(s) / self._service.mean
        rho = self._lam * self._service.mean
        return np.asarray(rho * (1.0 - r) / (s * (1.0 - rho * r)))
