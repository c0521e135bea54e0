"""What a queue may ask of a service-time (or gap) distribution, and the answer when only moments are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.queues.base import positive

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]


def _gauss_legendre(points: int) -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return np.asarray(0.5 * (nodes + 1.0), dtype=np.float64), np.asarray(0.5 * weights, dtype=np.float64)


# Rules on [0, 1]: for panels of any width, and for the narrow cells of a lattice.
NODES, WEIGHTS = _gauss_legendre(8)
FEW_NODES, FEW_WEIGHTS = _gauss_legendre(4)


class Cells(NamedTuple):
    """Integrals of the tail over the cells [jh, (j+1)h): the tail itself, and the tail times (x - jh)/h."""

    whole: Floats
    sloped: Floats


class Sizes(NamedTuple):
    """The distribution cut into ascending size classes: largest size, P, E[S; class] and E[S^2; class] of each.

    ``tail_integral`` is that of P(S > x) over the class; ``atoms`` says that a class is one value, the largest.
    """

    upto: Floats
    mass: Floats
    first: Floats
    second: Floats
    tail_integral: Floats
    atoms: bool


class Service(ABC):
    """A distribution of non-negative times (s).

    ``mean`` and ``second`` (E[S], E[S^2]) always exist; ``third`` and the functions of the whole distribution raise
    ``NotImplementedError`` where they are not known.
    """

    @property
    @abstractmethod
    def mean(self) -> float:
        """E[S] (s)."""

    @property
    @abstractmethod
    def second(self) -> float:
        """E[S^2] (s^2)."""

    @property
    @abstractmethod
    def third(self) -> float:
        """E[S^3] (s^3)."""

    @property
    def scv(self) -> float:
        """Squared coefficient of variation."""
        return max(self.second / self.mean**2 - 1.0, 0.0)

    @abstractmethod
    def sf(self, x: ArrayLike) -> Floats:
        """P(S > x)."""

    @property
    def breaks(self) -> Floats:
        """Points where quadrature of the tail should put panel edges: ends of the support, spread of the mass."""
        return np.empty(0)

    def cells(self, h: float, n: int) -> Cells:
        """Integrals of the tail over n cells of width h (Gauss-Legendre; cells are cut where the tail bends)."""
        body = np.concatenate([np.linspace(0.0, 4.0, 100), np.geomspace(1e-8, 100.0, 140)]) * self.mean
        cuts = np.concatenate([body, self.breaks])
        edges = np.unique(np.concatenate([np.arange(n + 1) * h, cuts[cuts < n * h]]))
        width = np.diff(edges)
        cell = np.minimum((0.5 * (edges[1:] + edges[:-1]) / h).astype(np.int64), n - 1)
        x = edges[:-1, None] + width[:, None] * FEW_NODES[None, :]
        tail = self.sf(x.ravel()).reshape(x.shape)
        whole = np.bincount(cell, weights=tail @ FEW_WEIGHTS * width, minlength=n)
        sloped = np.bincount(cell, weights=(tail * (x / h - cell[:, None])) @ FEW_WEIGHTS * width, minlength=n)
        return Cells(whole.astype(np.float64), sloped.astype(np.float64))

    def tail_transform(self, s: ArrayLike) -> Complexes:
        """Integral of exp(-s x) P(S > x) dx for s with one common real part > 0 (composite Gauss-Legendre)."""
        points = np.atleast_1d(np.asarray(s, dtype=np.complex128))
        far = 40.0 / points.real.min()
        edges = np.concatenate([[0.0], np.geomspace(far * 1e-9, far, 60), np.linspace(0.0, far, 200)[1:], self.breaks])
        edges = np.unique(edges[edges <= far])
        x = (edges[:-1, None] + np.diff(edges)[:, None] * NODES[None, :]).ravel()
        w = (np.diff(edges)[:, None] * WEIGHTS[None, :]).ravel() * self.sf(x)
        return np.asarray(np.exp(-points[:, None] * x[None, :]) @ w, dtype=np.complex128)

    def lst(self, s: float) -> float:
        """Laplace-Stieltjes transform E[exp(-s S)] at a real s >= 0."""
        return 1.0 if s == 0 else float(1.0 - s * self.tail_transform(np.array([s])).real[0])

    def sizes(self, panels: int = 8000) -> Sizes:
        """The distribution cut into about ``panels`` size classes, geometric in size (atoms stay whole in data)."""
        far = self.mean
        while float(self.sf(far)) * far > 1e-13 * self.mean and far < 1e12 * self.mean:
            far *= 2.0
        even = np.linspace(0.0, min(far, 20.0 * self.mean), panels // 2)
        edges = np.unique(np.concatenate([even, np.geomspace(1e-6 * self.mean, far, panels // 2), self.breaks]))
        edges = edges[(edges >= 0) & (edges <= far)]
        x = edges[:-1, None] + np.diff(edges)[:, None] * NODES[None, :]
        tail = self.sf(x.ravel()).reshape(x.shape) * np.diff(edges)[:, None]
        at = self.sf(edges)
        # By parts: E[S; a < S <= b] = a F(a) - b F(b) + integral of the tail F; the last class takes what is beyond.
        mass = -np.diff(at)
        first = tail @ WEIGHTS - np.diff(edges * at)
        second = 2.0 * (tail * x) @ WEIGHTS - np.diff(edges**2 * at)
        mass[-1] += at[-1]
        first[-1] = self.mean - first[:-1].sum()
        second[-1] = self.second - second[:-1].sum()
        return Sizes(edges[1:], mass, first, second, tail @ WEIGHTS, False)

    @property
    def light_tail_limit(self) -> float:
        """Supremum of the s for which E[exp(s S)] is finite (inf for bounded S)."""
        raise NotImplementedError("no exponential moments are known for this service distribution")

    def mgf_tail(self, s: float) -> float:
        """Integral of exp(s x) P(S > x) dx for real s below ``light_tail_limit``."""
        raise NotImplementedError("no exponential moments are known for this service distribution")


@dataclass(frozen=True)
class Moments(Service):
    """Only E[S], E[S^2] and perhaps E[S^3] are known: enough for means, not for tails."""

    ES: float
    ES2: float
    ES3: float | None = None

    def __post_init__(self) -> None:
        positive("ES", self.ES)
        positive("ES2", self.ES2)
        if self.ES2 < self.ES**2 * (1 - 1e-12):
            raise ValueError(f"ES2 = {self.ES2!r} is below ES^2 = {self.ES**2!r}: no distribution has these moments")
        if self.ES3 is not None and self.ES3 * self.ES < self.ES2**2 * (1 - 1e-12):
            raise ValueError(
                f"ES3 = {self.ES3!r} is below ES2^2/ES = {self.ES2**2 / self.ES!r}: no distribution has these moments"
            )

    @property
    def mean(self) -> float:
        return self.ES

    @property
    def second(self) -> float:
        return self.ES2

    @property
    def third(self) -> float:
        if self.ES3 is None:
            raise NotImplementedError("needs E[S^3]: give ES3 or the whole service distribution")
        return self.ES3

    def sf(self, x: ArrayLike) -> Floats:
        raise NotImplementedError("moments do not determine the distribution: give phase-type, scipy or data instead")

    def sizes(self, panels: int = 8000) -> Sizes:
        raise NotImplementedError("moments do not determine the distribution: give phase-type, scipy or data instead")
