"""Phase-type distributions: the time until a Markov chain with generator T, started by alpha, is absorbed.

Dense in all distributions on [0, inf), closed under what queues do to service times, and every tail is a matrix
exponential, so that M/PH/1 has its whole waiting-time distribution without a numerical inversion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import expm
from scipy.special import gammaln, xlogy

from analysis.queues.base import positive, whole
from analysis.queues.service_base import Complexes, Floats, Service


class MatrixExponential:
    """t -> v exp(B t) w for a sub-generator B, by partial fractions where B is safely diagonalisable.

    Otherwise by uniformisation (a Poisson mixture of powers of I + B/rate: positive terms, nothing cancels), and for
    very long times by scipy's ``expm``.
    """

    def __init__(self, v: Floats, B: Floats, w: Floats) -> None:
        self._v, self._B, self._w = v, B, w
        values, vectors = np.linalg.eig(B)
        self._values: Complexes | None = None
        # Partial fractions lose about cond * 1e-16; repeated eigenvalues (Erlang) have no such form at all.
        if np.linalg.cond(vectors) < 1e4:
            self._values = np.asarray(values, dtype=np.complex128)
            self._weights = (v @ vectors) * np.linalg.solve(vectors, w.astype(np.complex128))
        self._rate = float(np.abs(np.diag(B)).max())
        self._power, self._powers = w, np.array([float(v @ w)])

    def __call__(self, t: float) -> float:
        return float(self.many(np.array([t]))[0])

    def many(self, t: Floats) -> Floats:
        """The same for an array of times."""
        if self._values is not None:
            return np.asarray((np.exp(np.multiply.outer(t, self._values)) @ self._weights).real)
        flat = t.ravel()
        parts = [self._uniformised(part) for part in np.array_split(flat, flat.size // 256 + 1)]
        return np.concatenate(parts).reshape(t.shape)

    def _uniformised(self, t: Floats) -> Floats:
        mean = self._rate * t
        top = float(mean.max(initial=0.0))
        if top > 5000.0:
            return np.array([float(self._v @ expm(self._B * x) @ self._w) for x in t.tolist()])
        powers = self._up_to(int(top + 10.0 * math.sqrt(top) + 40))
        k = np.arange(float(powers.size))
        return np.asarray(np.exp(xlogy(k, mean[:, None]) - mean[:, None] - gammaln(k + 1)) @ powers)

    def _up_to(self, count: int) -> Floats:
        """v (I + B/rate)^k w for k < count, kept from call to call."""
        if self._powers.size < count:
            step, more = np.eye(self._B.shape[0]) + self._B / self._rate, []
            for _ in range(max(count, 2 * self._powers.size) - self._powers.size):
                self._power = np.asarray(step @ self._power)
                more.append(float(self._v @ self._power))
            self._powers = np.concatenate([self._powers, more])
        return self._powers[:count]


@dataclass(frozen=True, eq=False)
class PhaseType(Service):
    """Absorption time of a Markov chain.

    Args:
        alpha: start probabilities, shape (m,), summing to 1.
        T: generator among the m transient phases (1/s), shape (m, m): off-diagonal >= 0, row sums <= 0, non-singular.

    P(S > x) = alpha exp(T x) 1 and E[S^k] = k! alpha (-T)^-k 1 (Neuts, Matrix-Geometric Solutions, 1981, section 2.2).

    >>> round(PhaseType([1.0, 0.0], [[-2.0, 2.0], [0.0, -2.0]]).scv, 12)    # Erlang-2
    0.5
    """

    alpha: ArrayLike
    T: ArrayLike

    def __post_init__(self) -> None:
        alpha = np.array(self.alpha, dtype=np.float64)
        T = np.array(self.T, dtype=np.float64)
        if alpha.ndim != 1 or T.shape != (alpha.size, alpha.size) or alpha.size == 0:
            raise ValueError(f"phase-type: alpha has shape {alpha.shape}, T {T.shape}; give (m,) and (m, m)")
        if not (np.isfinite(alpha).all() and np.isfinite(T).all()):
            raise ValueError("phase-type: alpha and T must be finite numbers")
        if (alpha < 0).any() or abs(alpha.sum() - 1) > 1e-9:
            raise ValueError(
                f"phase-type: alpha = {alpha.tolist()} must be >= 0 and sum to 1 (sums to {alpha.sum():.9g})"
            )
        off = T - np.diag(np.diag(T))
        if (off < 0).any() or (T.sum(axis=1) > 1e-9 * np.abs(T).max()).any():
            raise ValueError("phase-type: T must have off-diagonal entries >= 0 and row sums <= 0")
        # Absorption is certain if and only if T is non-singular.
        if np.linalg.matrix_rank(T) < alpha.size:
            raise ValueError("phase-type: T is singular, so some phase never ends; give every phase a way out")
        object.__setattr__(self, "alpha", alpha / alpha.sum())
        object.__setattr__(self, "T", T)

    @property
    def start(self) -> Floats:
        """alpha as an array."""
        return np.asarray(self.alpha)

    @property
    def generator(self) -> Floats:
        """T as an array (1/s)."""
        return np.asarray(self.T)

    @cached_property
    def exits(self) -> Floats:
        """Absorption rate of each phase, -T 1 (1/s)."""
        return np.maximum(-self.generator.sum(axis=1), 0.0)

    @cached_property
    def occupation(self) -> Floats:
        """Mean time spent in each phase, alpha (-T)^-1 (s)."""
        return np.asarray(np.linalg.solve(-self.generator.T, self.start))

    def _moment(self, k: int) -> float:
        v = self.start
        for _ in range(k):
            v = np.asarray(np.linalg.solve(-self.generator.T, v), dtype=np.float64)
        return float(math.factorial(k) * v.sum())

    @cached_property
    def mean(self) -> float:
        return self._moment(1)

    @cached_property
    def second(self) -> float:
        return self._moment(2)

    @cached_property
    def third(self) -> float:
        return self._moment(3)

    @cached_property
    def _tail(self) -> MatrixExponential:
        return MatrixExponential(self.start, self.generator, np.ones(self.start.size))

    def sf(self, x: ArrayLike) -> Floats:
        t = np.asarray(x, dtype=np.float64)
        return np.where(t < 0, 1.0, np.clip(self._tail.many(np.maximum(t, 0.0)), 0.0, 1.0))

    def tail_transform(self, s: ArrayLike) -> Complexes:
        eye = np.eye(self.start.size)
        points = np.atleast_1d(np.asarray(s, dtype=np.complex128))
        ones = np.ones(self.start.size, dtype=np.complex128)
        return np.array([self.start @ np.linalg.solve(z * eye - self.generator, ones) for z in points])

    @cached_property
    def light_tail_limit(self) -> float:
        return float(-np.linalg.eigvals(self.generator).real.max())

    def mgf_tail(self, s: float) -> float:
        return float(self.tail_transform(-s)[0].real)


def exponential(mean: float) -> PhaseType:
    """Exponential times with this mean (s)."""
    return PhaseType([1.0], [[-1.0 / positive("mean", mean)]])


def erlang(stages: int, mean: float) -> PhaseType:
    """Sum of ``stages`` equal exponential stages with this total mean (s); scv = 1/stages."""
    m = whole("stages", stages)
    rate = m / positive("mean", mean)
    return PhaseType(np.eye(m)[0], rate * (np.eye(m, k=1) - np.eye(m)))


def hyperexponential(probabilities: Sequence[float], rates: Sequence[float]) -> PhaseType:
    """Exponential with rate ``rates[i]`` (1/s) with probability ``probabilities[i]``; scv >= 1."""
    return PhaseType(np.array(probabilities, dtype=np.float64), -np.diag([positive("rate", r) for r in rates]))


def two_moment(mean: float, scv: float) -> PhaseType:
    """The usual phase-type with this mean (s) and scv > 0: mixed Erlang below 1, balanced hyperexponential above.

    Tijms, A First Course in Stochastic Models (2003), appendix B. Fits two moments, not the shape: a stand-in only.

    >>> fit = two_moment(2.0, 0.3)
    >>> round(fit.mean, 9), round(fit.scv, 9)
    (2.0, 0.3)
    """
    positive("mean", mean)
    positive("scv", scv)
    if abs(scv - 1.0) < 1e-12:
        return exponential(mean)
    if scv > 1:
        p = 0.5 * (1.0 + math.sqrt((scv - 1.0) / (scv + 1.0)))
        return hyperexponential([p, 1.0 - p], [2.0 * p / mean, 2.0 * (1.0 - p) / mean])
    k = max(math.ceil(1.0 / scv - 1e-12), 2)
    # With probability p one stage fewer: Erlang(k - 1) or Erlang(k), one common rate.
    p = (k * scv - math.sqrt(max(k * (1.0 + scv) - k * k * scv, 0.0))) / (1.0 + scv)
    rate = (k - p) / mean
    start: NDArray[np.float64] = np.zeros(k)
    start[0], start[1] = 1.0 - p, p
    return PhaseType(start, rate * (np.eye(k, k=1) - np.eye(k)))
