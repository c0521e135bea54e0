"""MMPP/PH/1: arrivals whose rate is switched by a Markov chain, phase-type service, by matrix-analytic methods."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_sylvester

from analysis.queues.base import INDEPENDENT, ONE_SERVER, OpenQueue, require_stable
from analysis.queues.phase_type import MatrixExponential, PhaseType
from analysis.queues.service import as_service
from analysis.queues.service_base import Floats


@dataclass(frozen=True, eq=False)
class MMPP1(OpenQueue):
    """MMPP/PH/1, first come first served.

    Args:
        rates: arrivals per second in each state of the modulating chain, shape (k,), >= 0.
        generator: its generator (1/s), shape (k, k): off-diagonal >= 0, rows sum to 0, irreducible.
        service: phase-type, or a scipy exponential or Erlang distribution.

    The age of the request in service is a Markov-modulated fluid: it rises while serving and falls by one gap at the
    end (Sengupta, Adv. Appl. Prob. 21 (1989) 159-180; He, Queueing Systems 2012, section on MAP/PH/1). With Psi the first-
    return matrix, from a Riccati equation by Newton's method, wait and sojourn are matrix exponentials in
    K = F++ + Psi F-+. Two to five times the wait of a renewal formula with the same ca2 is normal.

    Fails when service times depend on the state, or the load drifts instead of switching.

    >>> q = MMPP1([0.5, 0.5], [[-1.0, 1.0], [1.0, -1.0]], ([1.0], [[-1.0]]))     # equal rates: M/M/1
    >>> round(q.Wq, 9)
    1.0
    """

    rates: ArrayLike
    generator: ArrayLike
    service: Any
    assumptions: ClassVar[tuple[str, ...]] = (
        "arrivals at a rate switched by a Markov chain",
        INDEPENDENT,
        "phase-type service",
        *ONE_SERVER,
    )

    def __post_init__(self) -> None:
        rates = np.array(self.rates, dtype=np.float64)
        Q = np.array(self.generator, dtype=np.float64)
        if rates.ndim != 1 or Q.shape != (rates.size, rates.size) or rates.size == 0:
            raise ValueError(f"MMPP: rates has shape {rates.shape}, generator {Q.shape}; give (k,) and (k, k)")
        if not (np.isfinite(rates).all() and np.isfinite(Q).all()) or (rates < 0).any() or not (rates > 0).any():
            raise ValueError(f"MMPP: rates {rates.tolist()} must be finite, >= 0 and not all 0")
        if (Q - np.diag(np.diag(Q)) < 0).any() or (np.abs(Q.sum(axis=1)) > 1e-9 * max(1.0, np.abs(Q).max())).any():
            raise ValueError("MMPP: generator must have off-diagonal entries >= 0 and rows that sum to 0")
        if np.linalg.matrix_rank(Q) < rates.size - 1:
            raise ValueError("MMPP: generator is reducible, so the long-run rate depends on the start; join the states")
        service = as_service(self.service)
        if not isinstance(service, PhaseType):
            raise ValueError(
                "MMPP/PH/1 needs phase-type service: give (alpha, T), or two_moment(mean, scv) as a stand-in for others"
            )
        object.__setattr__(self, "rates", rates)
        object.__setattr__(self, "generator", Q)
        object.__setattr__(self, "service", service)
        require_stable("MMPP/PH/1", self.rho, f"lower the rates below a mean of {1.0 / service.mean:.6g}")

    @classmethod
    def two_state(cls, rates: tuple[float, float], leave: tuple[float, float], service: Any) -> MMPP1:
        """Two states with these arrival rates and rates of leaving them (1/s), as a fit of a trace gives them."""
        return cls(rates, [[-leave[0], leave[0]], [leave[1], -leave[1]]], service)

    @property
    def _service(self) -> PhaseType:
        service: PhaseType = self.service
        return service

    @cached_property
    def stationary(self) -> Floats:
        """Share of time in each state of the modulating chain."""
        Q = np.asarray(self.generator)
        A = np.vstack([Q.T, np.ones(Q.shape[0])])
        b = np.concatenate([np.zeros(Q.shape[0]), [1.0]])
        return np.asarray(np.linalg.lstsq(A, b, rcond=None)[0])

    @cached_property
    def lam(self) -> float:  # type: ignore[override]
        """Mean arrivals per second."""
        return float(self.stationary @ np.asarray(self.rates))

    @property
    def rho(self) -> float:
        return self.lam * self._service.mean

    @cached_property
    def _age(self) -> tuple[Floats, Floats, Floats, Floats, float]:
        """Start vector u, K, wait column, sojourn column and the arrivals' normalisation; see the class."""
        alpha, S, exits = self._service.start, self._service.generator, self._service.exits
        D1 = np.diag(np.asarray(self.rates))
        D0 = np.asarray(self.generator) - D1
        k = D0.shape[0]
        eye = np.eye(k)
        up_up: Floats = np.kron(S, eye).astype(np.float64)
        up_down: Floats = np.kron(exits[:, None], eye).astype(np.float64)
        down_up: Floats = np.kron(alpha[None, :], D1).astype(np.float64)
        psi = _first_return(up_up, up_down, down_up, D0)
        K: Floats = np.asarray(up_up + psi @ down_up, dtype=np.float64)
        idle = D0 + down_up @ psi
        # Phase while empty: the left null vector of `idle`, up to a factor that cancels.
        A = idle.T.copy()
        A[-1] = 1.0
        v = np.linalg.solve(A, np.eye(k)[-1])
        u: Floats = np.asarray(v @ down_up, dtype=np.float64)
        ones = np.ones(k)
        to_wait, to_sojourn = np.asarray(psi @ D1 @ ones), np.asarray(up_down @ ones)
        total = float(v @ D1 @ ones + u @ np.linalg.solve(-K, to_wait))
        return u, K, to_wait, to_sojourn, total

    @cached_property
    def _wait(self) -> MatrixExponential:
        u, K, to_wait, _, total = self._age
        return MatrixExponential(np.asarray(np.linalg.solve(-K.T, u)) / total, K, to_wait)

    @cached_property
    def _sojourn(self) -> MatrixExponential:
        u, K, _, to_sojourn, total = self._age
        return MatrixExponential(np.asarray(np.linalg.solve(-K.T, u)) / total, K, to_sojourn)

    def _mean(self, column: Floats) -> float:
        u, K, _, _, total = self._age
        return float(np.linalg.solve(-K.T, u) @ np.linalg.solve(-K, column)) / total

    @cached_property
    def Wq(self) -> float:
        return self._mean(self._age[2])

    @property
    def W(self) -> float:
        return self.Wq + self._service.mean

    @cached_property
    def decay_rate(self) -> float:
        return float(-np.linalg.eigvals(self._age[1]).real.max())

    def _wait_tail(self, t: float) -> float:
        return self._wait(t)

    def _sojourn_tail(self, t: float) -> float:
        return self._sojourn(t)


def _first_return(up_up: Floats, up_down: Floats, down_up: Floats, down_down: Floats) -> Floats:
    """Minimal Psi >= 0 with F+- + F++ Psi + Psi F-- + Psi F-+ Psi = 0, by Newton's method from 0 (Guo 2001)."""
    psi = np.zeros_like(up_down)
    for _ in range(60):
        step = solve_sylvester(up_up + psi @ down_up, down_down + down_up @ psi, -up_down + psi @ down_up @ psi)
        change = float(np.abs(step - psi).max())
        psi = np.asarray(step)
        if change < 1e-14:
            return psi
    if change > 1e-9:
        raise ArithmeticError(f"the first-return matrix of MMPP/PH/1 did not converge (last change {change:.2g})")
    return psi
