"""Areas under step functions and under sets of intervals: what an integral over time is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def step_integral(t: Array, value: Array, at: Array) -> Array:
    """Integral from the first row up to each time in ``at`` of a step function: each value holds until the next row.

    Before its first row a gauge is 0: nothing has come yet. Rows of equal time: the last one counts. Rows out of order
    (two threads wrote them) are put in order first.
    """
    if t.size == 0:
        return np.zeros_like(at)
    order = np.argsort(t, kind="stable")
    t, value = t[order], value[order]
    total = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(t))])
    index = np.searchsorted(t, at, side="right") - 1
    held = np.maximum(index, 0)
    return np.where(index >= 0, total[held] + value[held] * (at - t[held]), 0.0)


def area_until(begin: Array, finish: Array, at: Array) -> Array:
    """Sum over requests of the time of [begin, finish] spent before each time in ``at`` (signed), in O(n log n)."""

    def ramp(stamps: Array) -> Array:
        ordered = np.sort(stamps[np.isfinite(stamps)])
        total = np.concatenate([[0.0], np.cumsum(ordered)])
        number = np.searchsorted(ordered, at, side="right")
        return number * at - total[number]

    return ramp(begin) - ramp(finish)


def clipped(begin: Array, finish: Array, start: float, end: float) -> Array:
    """Time of each interval that lies within [start, end]."""
    # Signed: a client that gives up before the engine does has a negative way out, and the stages still add up.
    return np.clip(finish, start, end) - np.clip(begin, start, end)
