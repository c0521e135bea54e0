"""What every queue model answers, the two ways in which it can refuse, and the checks that all models share.

A model gives means and, where a formula exists, tails; quantiles are the tails inverted, in one place, here.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

POISSON = "Poisson arrivals"
RENEWAL = "independent, identically distributed gaps between arrivals"
EXPONENTIAL = "independent exponential service times"
INDEPENDENT = "independent, identically distributed service times, independent of the arrivals"
FIXED = "constant service times"
FCFS = "first come, first served"
PATIENT = "nobody is refused and nobody leaves"
STEADY = "steady state"
ONE_SERVER = ("one server", FCFS, PATIENT, STEADY)
SERVERS = ("c servers that do not slow each other", FCFS, PATIENT, STEADY)


class UnstableQueueError(ValueError):
    """The queue has no steady state at this load; the message gives the load and its limit."""


def positive(name: str, value: float) -> float:
    """``value`` as a float, refused unless it is finite and above zero."""
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} = {value!r}: give a finite number above 0")
    return number


def not_negative(name: str, value: float) -> float:
    """``value`` as a float, refused unless it is finite and at least zero."""
    number = _number(name, value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} = {value!r}: give a finite number, 0 or above")
    return number


def whole(name: str, value: float, least: int = 1) -> int:
    """``value`` as an int, refused unless it is a whole number of at least ``least``."""
    number = math.nan if isinstance(value, bool) else _number(name, value)
    if not math.isfinite(number) or number != int(number) or number < least:
        raise ValueError(f"{name} = {value!r}: give a whole number of at least {least}")
    return int(number)


def _number(name: str, value: float) -> float:
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{name} = {value!r}: give a number")
    return float(value)


def require_stable(model: str, load: float, remedy: str) -> None:
    """Raise ``UnstableQueueError`` unless ``load`` (per server) is below 1."""
    if not load < 1:
        raise UnstableQueueError(f"{model}: load {load:.6g} per server, below 1 is stable; {remedy}")


def quantile_of_tail(tail: Callable[[float], float], q: float, scale: float) -> float:
    """Smallest t >= 0 with ``tail(t) <= 1 - q``, for a non-increasing ``tail``.

    Args:
        tail: t (s) -> P(X > t).
        q: probability in (0, 1); anything else is a ``ValueError``.
        scale: a time of the order of the answer, to start the bracket from (s).
    """
    if not 0 < q < 1:
        raise ValueError(f"q = {q!r}: a quantile wants a probability strictly between 0 and 1")
    left = 1.0 - q
    if tail(0.0) <= left:
        return 0.0
    low, high = 0.0, scale
    while tail(high) > left:
        low, high = high, 2.0 * high
        if not math.isfinite(high):
            raise ArithmeticError(f"the tail stays above {left:g}: no finite quantile at q = {q}")
    root = float(brentq(lambda t: tail(t) - left, low, high, xtol=1e-14 * high, rtol=1e-14, maxiter=300))
    # The root finder may stop on either side of a jump; the answer is the side where the tail is down.
    return root if tail(root) <= left else _step_down(tail, left, root, high)


def _step_down(tail: Callable[[float], float], left: float, low: float, high: float) -> float:
    step = max(math.ulp(low), 1e-15 * high)
    while low + step < high:
        if tail(low + step) <= left:
            return low + step
        step *= 2.0
    return high


class OpenQueue(ABC):
    """A queue with an outside arrival stream, in steady state.

    Times in the unit of the given rates (seconds here). ``L = lam_eff * W`` holds for every model, ``lam_eff`` being the
    accepted rate (``lam`` where nothing is refused). Where no formula exists a method raises ``NotImplementedError``
    with the reason. Models implement ``_wait_tail`` and ``_sojourn_tail`` for one t >= 0; everything else about
    distributions follows here. Tails take a number or an array of times.
    """

    lam: float
    assumptions: ClassVar[tuple[str, ...]]

    @property
    def lam_eff(self) -> float:
        """Accepted arrivals per second."""
        return self.lam

    @property
    @abstractmethod
    def rho(self) -> float:
        """Load per server: lam E[S] / c."""

    @property
    @abstractmethod
    def Wq(self) -> float:
        """Mean wait before service (s)."""

    @property
    @abstractmethod
    def W(self) -> float:
        """Mean sojourn: wait and service (s)."""

    @property
    def L(self) -> float:
        """Mean number in system, by Little's law."""
        return self.lam_eff * self.W

    @property
    def Lq(self) -> float:
        """Mean number waiting, by Little's law."""
        return self.lam_eff * self.Wq

    def _wait_tail(self, t: float) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no known waiting-time distribution")

    def _sojourn_tail(self, t: float) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no known sojourn-time distribution")

    @overload
    def wait_tail(self, t: float) -> float: ...
    @overload
    def wait_tail(self, t: ArrayLike) -> NDArray[np.float64]: ...
    def wait_tail(self, t: ArrayLike) -> float | NDArray[np.float64]:
        """P(wait > t), t in seconds; 1 for t < 0."""
        return _over_times(self._wait_tail, t)

    @overload
    def sojourn_tail(self, t: float) -> float: ...
    @overload
    def sojourn_tail(self, t: ArrayLike) -> NDArray[np.float64]: ...
    def sojourn_tail(self, t: ArrayLike) -> float | NDArray[np.float64]:
        """P(sojourn > t), t in seconds; 1 for t < 0."""
        return _over_times(self._sojourn_tail, t)

    def wait_quantile(self, q: float) -> float:
        """Smallest t (s) with P(wait <= t) >= q, for q in (0, 1)."""
        return quantile_of_tail(self._wait_tail, q, self._scale)

    def sojourn_quantile(self, q: float) -> float:
        """Smallest t (s) with P(sojourn <= t) >= q, for q in (0, 1)."""
        return quantile_of_tail(self._sojourn_tail, q, self._scale)

    @property
    def decay_rate(self) -> float:
        """Cramér-Lundberg decay rate (1/s): P(wait > t) ~ C exp(-decay_rate t) for large t."""
        raise NotImplementedError(f"{type(self).__name__} gives no exponential decay rate of the wait")

    @property
    def _scale(self) -> float:
        return self.W


def _over_times(tail: Callable[[float], float], t: ArrayLike) -> float | NDArray[np.float64]:
    def one(x: float) -> float:
        if math.isnan(x):
            raise ValueError("t is not a number: give times in seconds")
        if x < 0:
            return 1.0
        value = 0.0 if math.isinf(x) else float(tail(x))
        if not -1e-9 < value < 1 + 1e-9:
            raise ArithmeticError(
                f"P(X > {x:g}) came out as {value!r}: this model's numerics fail for these parameters"
            )
        return min(max(value, 0.0), 1.0)  # rounding only

    times = np.asarray(t, dtype=np.float64)
    if times.ndim == 0:
        return one(float(times))
    return np.array([one(x) for x in times.ravel().tolist()], dtype=np.float64).reshape(times.shape)
