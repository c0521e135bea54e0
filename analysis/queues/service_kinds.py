"""Service times that are constant, measured (data), or a scipy.stats distribution."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad

from analysis.queues.base import positive
from analysis.queues.service_base import Cells, Complexes, Floats, Service, Sizes


@dataclass(frozen=True)
class Deterministic(Service):
    """Always the same time D (s)."""

    D: float

    def __post_init__(self) -> None:
        positive("D", self.D)

    @property
    def mean(self) -> float:
        return self.D

    @property
    def second(self) -> float:
        return self.D**2

    @property
    def third(self) -> float:
        return self.D**3

    def sf(self, x: ArrayLike) -> Floats:
        return np.where(np.asarray(x) < self.D, 1.0, 0.0)

    @property
    def breaks(self) -> Floats:
        return np.array([self.D])

    def tail_transform(self, s: ArrayLike) -> Complexes:
        points = np.atleast_1d(np.asarray(s, dtype=np.complex128))
        return np.asarray(-np.expm1(-points * self.D) / points)

    def sizes(self, panels: int = 8000) -> Sizes:
        D = np.array([self.D])
        return Sizes(D, np.ones(1), D, D**2, D, True)

    @property
    def light_tail_limit(self) -> float:
        return math.inf

    def mgf_tail(self, s: float) -> float:
        return self.D if s == 0 else math.expm1(s * self.D) / s


class Sample(Service):
    """Measured times, each equally likely: the empirical distribution (atoms, bounded by the largest).

    Args:
        data: one-dimensional, at least two values, finite, >= 0, not all zero (s).
    """

    def __init__(self, data: ArrayLike) -> None:
        values = np.sort(np.asarray(data, dtype=np.float64))
        if values.ndim != 1 or values.size < 2:
            raise ValueError(f"service data has shape {values.shape}: give a one-dimensional array of at least 2 times")
        if not np.isfinite(values).all():
            raise ValueError("service data holds NaN or infinite times: drop or censor them before")
        if values[0] < 0:
            raise ValueError(f"service data holds negative times (smallest {values[0]!r} s)")
        if values[-1] == 0:
            raise ValueError("service data holds only zeros: check the unit and the columns")
        self._x, counts = np.unique(values, return_counts=True)
        self._p = counts / values.size
        self._above = np.concatenate([np.cumsum(self._p[::-1])[::-1], [0.0]])

    @cached_property
    def mean(self) -> float:
        return float(self._p @ self._x)

    @cached_property
    def second(self) -> float:
        return float(self._p @ self._x**2)

    @cached_property
    def third(self) -> float:
        return float(self._p @ self._x**3)

    def sf(self, x: ArrayLike) -> Floats:
        return np.asarray(self._above[np.searchsorted(self._x, np.asarray(x, dtype=np.float64), side="right")])

    def cells(self, h: float, n: int) -> Cells:
        # Exact: a mass p at x adds p to the tail from the cell's left edge to x.
        j = np.floor(self._x / h).astype(np.int64)
        inside = j < n
        part = self._x[inside] / h - j[inside]
        p = self._p[inside]
        right = np.maximum(1.0 - np.cumsum(np.bincount(j[inside], weights=p, minlength=n)), 0.0)
        whole = right + np.bincount(j[inside], weights=p * part, minlength=n)
        sloped = 0.5 * (right + np.bincount(j[inside], weights=p * part**2, minlength=n))
        return Cells(h * whole, h * sloped)

    def tail_transform(self, s: ArrayLike) -> Complexes:
        points = np.atleast_1d(np.asarray(s, dtype=np.complex128))
        x, p = self._merged
        return np.array([p @ (-np.expm1(-z * x)) / z for z in points])

    @cached_property
    def _merged(self) -> tuple[Floats, Floats]:
        """The distribution with neighbours below the largest thousand merged, mean kept, to some thousand points."""
        if self._x.size <= 6000:
            return self._x, self._p
        body = self._x.size - 1000
        starts = np.arange(0, body, math.ceil(body / 4000))
        p = np.concatenate([np.add.reduceat(self._p[:body], starts), self._p[body:]])
        x = np.concatenate([np.add.reduceat((self._p * self._x)[:body], starts), (self._p * self._x)[body:]]) / p
        return x, p

    def sizes(self, panels: int = 8000) -> Sizes:
        x, p = self._x, self._p
        return Sizes(x, p, p * x, p * x**2, self._above[:-1] * np.diff(x, prepend=0.0), True)

    @property
    def light_tail_limit(self) -> float:
        return math.inf

    def mgf_tail(self, s: float) -> float:
        if s * self._x[-1] > 700:
            return math.inf
        return self.mean if s == 0 else float(self._p @ np.expm1(s * self._x)) / s


class Frozen(Service):
    """A frozen scipy.stats distribution of non-negative times (s), continuous.

    Args:
        frozen: for example ``scipy.stats.lognorm(s=0.8, scale=0.1)``.
    """

    def __init__(self, frozen: Any) -> None:
        low = float(frozen.support()[0])
        if low < 0:
            raise ValueError(f"service distribution reaches down to {low!r}: times must be >= 0 (truncate or shift it)")
        mean, variance = (float(m) for m in frozen.stats(moments="mv"))
        if not (math.isfinite(mean) and mean > 0):
            raise ValueError(f"service distribution has mean {mean!r}: a queue needs a finite mean above 0")
        self._frozen = frozen
        self._mean, self._variance = mean, variance

    @property
    def mean(self) -> float:
        return self._mean

    @property
    def second(self) -> float:
        if not math.isfinite(self._variance):
            raise ValueError("service distribution has no finite variance: then the mean wait is infinite (M/G/1)")
        return self._variance + self._mean**2

    @cached_property
    def third(self) -> float:
        value = float(self._frozen.moment(3))
        if not math.isfinite(value):
            raise NotImplementedError("the service distribution has no finite third moment: the variance is infinite")
        return value

    def sf(self, x: ArrayLike) -> Floats:
        return np.asarray(self._frozen.sf(np.asarray(x, dtype=np.float64)), dtype=np.float64)

    @cached_property
    def breaks(self) -> Floats:
        ends = np.array(self._frozen.support(), dtype=np.float64)
        spread = self._frozen.ppf(np.linspace(0.02, 0.98, 25))
        return np.unique(np.concatenate([ends[np.isfinite(ends)], spread]))

    @cached_property
    def light_tail_limit(self) -> float:
        top = float(self._frozen.support()[1])
        if math.isfinite(top):
            return math.inf
        # scipy tells no abscissa of convergence; for these families it is known.
        name, shapes = self._frozen.dist.name, (*self._frozen.args, *self._frozen.kwds.values())
        scale = float(self._frozen.kwds.get("scale", 1.0))
        if name in ("gamma", "erlang", "expon") and len(self._frozen.args) <= 1 and "loc" not in self._frozen.kwds:
            return 1.0 / scale
        if name in ("truncnorm", "halfnorm", "foldnorm"):
            return math.inf
        raise NotImplementedError(
            f"no exponential decay is known for {name}{tuple(float(x) for x in shapes)}: its tail may be heavier than "
            "exponential"
        )

    def mgf_tail(self, s: float) -> float:
        top = min(float(self._frozen.support()[1]), float(self._frozen.isf(1e-280)))
        points = np.unique(np.clip(self._frozen.isf([0.5, 1e-2, 1e-5, 1e-10, 1e-20, 1e-40, 1e-80]), 0, top))
        edges = np.concatenate([[0.0], points, [top]])
        return float(
            sum(
                quad(lambda x: math.exp(s * x) * float(self._frozen.sf(x)), a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
                for a, b in itertools.pairwise(edges)
                if b > a
            )
        )
