"""M/G/1 served by size: shortest job first, and shortest remaining processing time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from analysis.queues.base import INDEPENDENT, PATIENT, POISSON, STEADY, positive
from analysis.queues.mg1 import PoissonGeneral
from analysis.queues.service_base import Floats, Sizes

_KNOWN_SIZES = "the size of every request is known when it arrives"


@dataclass(frozen=True, eq=False)
class _BySize(PoissonGeneral):
    """What both disciplines share: the load of the requests up to a size."""

    @cached_property
    def _sizes(self) -> Sizes:
        return self._service.sizes()

    @cached_property
    def _loads(self) -> tuple[Floats, Floats]:
        """Load of requests in smaller classes, and in classes up to and including each."""
        upto = np.minimum(np.cumsum(self.lam * self._sizes.first), self.rho)
        return np.concatenate([[0.0], upto[:-1]]), upto

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError(f"{type(self).__name__}: only means have a closed form here; simulate the tails")

    _sojourn_tail = _wait_tail


@dataclass(frozen=True, eq=False)
class SJF(_BySize):
    """M/G/1, shortest job first, a service once begun is finished.

    Wq(x) = lam E[S^2] / (2 (1 - rho(x-)) (1 - rho(x))), rho(x) the load of requests no longer than x (Phipps, Operations
    Research 4 (1956) 76-85): Cobham's formula with a class for every size. Integrated over thousands
    of size classes (to about 1e-6); exact for data and constant times. Needs the whole service distribution. Fails when
    sizes are guessed: outputs of unknown length are not SJF.

    >>> from scipy import stats
    >>> round(SJF(0.8, stats.expon()).Wq, 4)                  # first come first served: 4.0
    1.8822
    """

    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        INDEPENDENT,
        "one server",
        "shortest first, without interruption",
        _KNOWN_SIZES,
        PATIENT,
        STEADY,
    )

    @cached_property
    def Wq(self) -> float:
        below, upto = self._loads
        return float(self._sizes.mass @ (0.5 * self.lam * self._service.second / ((1.0 - below) * (1.0 - upto))))

    @property
    def W(self) -> float:
        return self.Wq + self._service.mean

    def wait_of(self, x: float) -> float:
        """Mean wait (s) of a request of size x (s)."""
        positive("x", x)
        i = int(np.searchsorted(self._sizes.upto, x, side="left"))
        below, upto = self._loads
        if i >= upto.size:
            return 0.5 * self.lam * self._service.second / (1.0 - self.rho) ** 2
        return float(0.5 * self.lam * self._service.second / ((1.0 - below[i]) * (1.0 - upto[i])))


@dataclass(frozen=True, eq=False)
class SRPT(_BySize):
    """M/G/1, shortest remaining processing time first, interrupting: no policy has a smaller mean sojourn.

    W(x) = lam (integral of t^2 dF to x + x^2 (1 - F(x))) / (2 (1 - rho(x-)) (1 - rho(x))) + integral of dt / (1 - rho(t))
    to x (Schrage & Miller, Operations Research 14 (1966) 670-684). Wq = W - E[S] holds interruptions too. Integrated as
    in ``SJF``. Fails when sizes are unknown or an interruption costs work.

    >>> from scipy import stats
    >>> round(SRPT(0.8, stats.expon()).W, 4)                  # first come first served: 5.0
    2.3528
    """

    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        INDEPENDENT,
        "one server",
        "shortest remaining time first, interruptions free of cost",
        _KNOWN_SIZES,
        PATIENT,
        STEADY,
    )

    @cached_property
    def W(self) -> float:
        sizes = self._sizes
        below, upto = self._loads
        longer = np.maximum(1.0 - np.cumsum(sizes.mass), 0.0)
        start = np.concatenate([[0.0], sizes.upto[:-1]])
        small = np.cumsum(sizes.second)
        if sizes.atoms:
            work = small + sizes.upto**2 * longer
            # Between two atoms the load of what is shorter stays that of the atoms below.
            residence = (longer + sizes.mass) * (sizes.upto - start) / (1.0 - below)
        else:
            at_end = small + sizes.upto**2 * longer
            work = 0.5 * (at_end + np.concatenate([[0.0], at_end[:-1]]))
            tail = sizes.tail_integral
            residence = tail / np.sqrt((1.0 - below) * (1.0 - upto))
        waiting = 0.5 * self.lam * work / ((1.0 - below) * (1.0 - upto))
        return float(sizes.mass @ waiting + residence.sum())

    @property
    def Wq(self) -> float:
        """Mean sojourn less mean service: waiting and interruptions (s)."""
        return self.W - self._service.mean
