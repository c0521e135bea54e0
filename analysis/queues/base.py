"""What every queue model answers, and the two ways in which it can refuse."""

from __future__ import annotations

from abc import ABC, abstractmethod


class UnstableQueueError(ValueError):
    """The queue has no steady state at this load; the message gives the load and its limit."""


class OpenQueue(ABC):
    """A queue with an outside arrival stream, in steady state.

    Times in the unit of the given rates (seconds here). ``L = lam_eff * W`` holds for every model, ``lam_eff`` being the
    accepted rate (``lam`` where nothing is refused). Where no formula exists a method raises ``NotImplementedError``
    with the reason.
    """

    lam: float
    assumptions: tuple[str, ...]

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
        """Mean wait before service."""

    @property
    @abstractmethod
    def W(self) -> float:
        """Mean sojourn (wait and service)."""

    @property
    def L(self) -> float:
        """Mean number in system, by Little's law."""
        return self.lam_eff * self.W

    @property
    def Lq(self) -> float:
        """Mean number waiting, by Little's law."""
        return self.lam_eff * self.Wq

    def wait_tail(self, t: float) -> float:
        """P(wait > t)."""
        raise NotImplementedError(f"{type(self).__name__} has no known waiting-time distribution")

    def wait_quantile(self, q: float) -> float:
        """Smallest t with P(wait <= t) >= q, for q in (0, 1)."""
        raise NotImplementedError(f"{type(self).__name__} has no known waiting-time distribution")

    def sojourn_quantile(self, q: float) -> float:
        """Smallest t with P(sojourn <= t) >= q, for q in (0, 1)."""
        raise NotImplementedError(f"{type(self).__name__} has no known sojourn-time distribution")
