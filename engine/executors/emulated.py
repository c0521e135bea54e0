"""An executor for real time without a model: it spins for a modelled time. A labelled instrument with a known truth."""

from __future__ import annotations

import time

from engine.executors.base import ScheduledBatch
from engine.executors.simulated import SimulatedExecutor


class EmulatedExecutor(SimulatedExecutor):
    """As ``SimulatedExecutor``, but the modelled time really passes, so that processes, clocks and threads are real."""

    SPIN_S = 2e-4  # the last stretch is spun, because sleep wakes up late

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        began = time.perf_counter()
        token_ids, duration = super().execute(batch)
        until = began + duration
        time.sleep(max(0.0, until - time.perf_counter() - self.SPIN_S))
        while time.perf_counter() < until:
            pass
        return token_ids, time.perf_counter() - began
