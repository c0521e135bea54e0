"""Robust queueing: the mean wait from how dispersed arrivals are on every time scale, where no renewal model holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize_scalar

from analysis.queues.base import INDEPENDENT, ONE_SERVER, OpenQueue, not_negative, positive, require_stable
from analysis.queues.service_base import Floats


@dataclass(frozen=True, eq=False)
class RobustQueue(OpenQueue):
    """G/GI/1 from the index of dispersion for counts I(t) of its arrivals: mean wait only, an approximation.

    Args:
        lam: arrivals per second.
        ES: mean service time (s).
        cs2: squared coefficient of variation of the service times.
        dispersion: I(t) for t > 0 (s), a function, or a measured curve with ``width_s`` and ``index`` (``analysis.arrivals.
            dispersion_curve``): straight in log t, 1 below the smallest width, constant beyond the largest.

    The largest workload over an uncertainty set of root two standard deviations, Z = sup over x of sqrt(2 rho ES x (I(x) +
    cs2)) - (1 - rho) x, and from it Wq = Z / rho - ES (1 + cs2) / 2 (Brumelle's identity). Exact for M/G/1, and in both
    limits of the load. Source: Whitt & You, Operations Research 66 (2018) 184-199, with b = sqrt 2. Fails where I(t) still
    rises at the largest width (the bursts are longer than what was seen): then it is too small.

    >>> round(RobustQueue(0.5, 1.0, 0.25, lambda t: 1.0).Wq, 9)       # Poisson: Pollaczek and Khinchine's 0.625
    0.625
    """

    lam: float
    ES: float
    cs2: float
    dispersion: Any
    assumptions: ClassVar[tuple[str, ...]] = ("stationary arrivals", INDEPENDENT, *ONE_SERVER)
    kind: ClassVar[str] = "approximation"

    def __post_init__(self) -> None:
        positive("lam", self.lam)
        positive("ES", self.ES)
        not_negative("cs2", self.cs2)
        require_stable("robust queueing", self.rho, f"lower lam below 1 / ES = {1.0 / self.ES:.6g}")

    @property
    def rho(self) -> float:
        return self.lam * self.ES

    def _index(self, t: float) -> float:
        if callable(self.dispersion):
            return float(self.dispersion(t))
        width, index = self._curve
        return float(np.interp(np.log(t), np.log(width), index))

    @cached_property
    def _curve(self) -> tuple[Floats, Floats]:
        width = np.asarray(self.dispersion.width_s, dtype=np.float64)
        index = np.asarray(self.dispersion.index, dtype=np.float64)
        if width.ndim != 1 or width.shape != index.shape or (width <= 0).any() or not np.isfinite(index).all():
            raise ValueError("dispersion: give widths above 0 and as many finite indices")
        # At far smaller times counts are 0 or 1, whatever the process.
        return np.concatenate([[width[0] * 1e-3], width]), np.concatenate([[1.0], index])

    def _excess(self, x: float) -> float:
        return float(np.sqrt(2.0 * self.rho * self.ES * x * (self._index(x) + self.cs2)) - (1.0 - self.rho) * x)

    @cached_property
    def workload(self) -> float:
        """Mean work in system (s)."""
        # Where a constant index would have its maximum, and far to both sides; I(t) may make several humps.
        centre = 0.5 * self.rho * self.ES / (1.0 - self.rho) ** 2
        grid = np.log(centre) + np.linspace(np.log(1e-6), np.log(1e6), 1201)
        values = [self._excess(float(np.exp(g))) for g in grid]
        at = int(np.argmax(values))
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, grid.size - 1)])
        found = minimize_scalar(
            lambda g: -self._excess(float(np.exp(g))), bounds=(low, high), method="bounded", options={"xatol": 1e-10}
        )
        return max(0.0, values[at], -float(found.fun))

    @property
    def Wq(self) -> float:
        return max(0.0, self.workload / self.rho - self.ES * (1.0 + self.cs2) / 2.0)

    @property
    def W(self) -> float:
        return self.Wq + self.ES

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError("robust queueing gives the mean wait only: fit an MMPP (MMPP1) or simulate")

    _sojourn_tail = _wait_tail
