"""Fluid model of overload: how far the backlog grows while more comes in than goes out, and when it is gone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from analysis.queues.base import not_negative, positive
from analysis.queues.service_base import Floats


@dataclass(frozen=True)
class Fluid:
    """Backlog when the arrival rate is piecewise constant and the capacity mu fixed, randomness left out.

    Args:
        profile: (seconds, arrivals per second) one after the other; the last rate goes on for ever.
        mu: capacity, completions per second while there is work.
        start: backlog at time 0 (requests).

    B' = lam(t) - mu while B > 0 or lam > mu (Newell, Applications of Queueing Theory, 1982, chapter 2). Right for large
    overloads, where randomness is small beside the backlog. Fails near load 1: it misses the stationary queue, and the true
    recovery is later and random. No steady state is meant, so there are no W, L or quantiles.

    >>> f = Fluid([(60.0, 12.0), (math.inf, 8.0)], mu=10.0)       # 120 % for a minute, then 80 %
    >>> f.peak, f.recovery_time, f.longest_delay
    (120.0, 60.0, 12.0)
    """

    profile: Sequence[tuple[float, float]]
    mu: float
    start: float = 0.0
    assumptions: ClassVar[tuple[str, ...]] = (
        "overload large beside the randomness",
        "fixed capacity while there is work",
        "nobody is refused and nobody leaves",
    )

    def __post_init__(self) -> None:
        positive("mu", self.mu)
        not_negative("start", self.start)
        if not len(self.profile):
            raise ValueError("profile is empty: give (seconds, arrivals per second), at least one")
        for i, (seconds, rate) in enumerate(self.profile):
            last = i == len(self.profile) - 1
            if not (seconds > 0 and (last or math.isfinite(seconds))):
                raise ValueError(f"profile[{i}] lasts {seconds!r} s: give a time above 0 (inf for the last only)")
            not_negative(f"rate of profile[{i}]", rate)

    @cached_property
    def _corners(self) -> tuple[Floats, Floats]:
        """Times and backlogs between which the backlog is a straight line."""
        times, backlogs = [0.0], [float(self.start)]
        for seconds, rate in self.profile[:-1]:
            now, backlog, slope = times[-1], backlogs[-1], rate - self.mu
            if slope < 0 and backlog < -slope * seconds:
                times.append(now + backlog / -slope)
                backlogs.append(0.0)
                slope = 0.0
            times.append(now + seconds)
            backlogs.append(backlogs[-1] + slope * (now + seconds - times[-2]))
        return np.array(times), np.array(backlogs)

    def backlog(self, t: ArrayLike) -> float | Floats:
        """Requests waiting or in service at time(s) t (s)."""
        times, backlogs = self._corners
        at = np.asarray(t, dtype=np.float64)
        if not (at >= 0).all():
            raise ValueError(f"t = {t!r}: the profile starts at time 0; give times of at least 0")
        slope = self.profile[-1][1] - self.mu
        after = np.maximum(backlogs[-1] + slope * np.maximum(at - times[-1], 0.0), 0.0)
        value = np.where(at <= times[-1], np.interp(at, times, backlogs), after)
        return float(value) if value.ndim == 0 else value

    def delay(self, t: ArrayLike) -> float | Floats:
        """Wait (s) of a request that arrives at time(s) t, first come first served: backlog / mu."""
        value = np.asarray(self.backlog(t)) / self.mu
        return float(value) if value.ndim == 0 else value

    @property
    def peak(self) -> float:
        """Largest backlog (requests); inf when the last rate is above capacity."""
        return math.inf if self.profile[-1][1] > self.mu else float(self._corners[1].max())

    @property
    def peak_time(self) -> float:
        """When the backlog is largest (s)."""
        return math.inf if self.profile[-1][1] > self.mu else float(self._corners[0][int(self._corners[1].argmax())])

    @property
    def longest_delay(self) -> float:
        """Longest wait (s): peak / mu."""
        return self.peak / self.mu

    @property
    def empty_at(self) -> float:
        """First time after which the backlog stays 0 (s); inf if it never does."""
        times, backlogs = self._corners
        slope = self.profile[-1][1] - self.mu
        if slope > 0 or (slope == 0 and backlogs[-1] > 0):
            return math.inf
        if backlogs[-1] > 0:
            return float(times[-1] + backlogs[-1] / -slope)
        above = np.flatnonzero(backlogs > 0)
        return float(times[above[-1] + 1]) if above.size else 0.0

    @property
    def recovery_time(self) -> float:
        """From the end of the last overload (rate above mu) until the backlog is gone (s); inf if it never is."""
        if math.isinf(self.empty_at):
            return math.inf
        ends = np.cumsum([seconds for seconds, _ in self.profile])
        over = [float(e) for e, (_, rate) in zip(ends, self.profile, strict=True) if rate > self.mu]
        return max(self.empty_at - (over[-1] if over else 0.0), 0.0)
