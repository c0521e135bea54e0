"""Warm-up, measurement, cool-down: which part of a run a request belongs to, by its intended arrival."""

from __future__ import annotations

from dataclasses import dataclass


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
