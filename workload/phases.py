"""Warm-up, measurement, cool-down: which part of a run a request belongs to, by its intended arrival."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workload.study_keys import Span


@dataclass(frozen=True)
class Phases:
    """The measured phase is ``[measure_start_s, measure_end_s)``, in seconds from the run's origin."""

    measure_start_s: float
    measure_end_s: float

    def phase_of(self, intended_s: float) -> str:
        if intended_s < self.measure_start_s:
            return "warmup"
        return "measure" if intended_s < self.measure_end_s else "cooldown"

    def window(self, end_s: float) -> tuple[float, float]:
        """The measured phase as far as a run that ended at ``end_s`` got."""
        return min(self.measure_start_s, end_s), min(self.measure_end_s, end_s)

    @classmethod
    def of_spans(cls, warmup: Span, measure: Span) -> Phases:
        """Phases given in seconds, for loops whose arrivals are not known beforehand.

        Raises:
            ValueError: a span counts requests.
        """
        if warmup.seconds is None or measure.seconds is None:
            raise ValueError("closed loops and sessions are measured by time: give warmup and measure in seconds")
        return cls(warmup.seconds, warmup.seconds + measure.seconds)

    @classmethod
    def of_timeline(cls, warmup: Span, measure: Span, times: NDArray[np.float64]) -> Phases:
        """Phases of a timeline: a span of n requests ends when the request after it is due.

        Raises:
            ValueError: the timeline is too short for the spans.
        """
        start_s = warmup.seconds if warmup.seconds is not None else _time_of(times, warmup.requests or 0)
        if measure.seconds is not None:
            return cls(start_s, start_s + measure.seconds)
        first = int(np.searchsorted(times, start_s))
        return cls(start_s, _time_of(times, first + (measure.requests or 0)))


def _time_of(times: NDArray[np.float64], index: int) -> float:
    if index > len(times):
        raise ValueError(f"the timeline has {len(times)} arrivals; warmup and measure ask for {index}")
    return float(times[index]) if index < len(times) else math.nextafter(float(times[-1]), math.inf)
