"""What of a study is still to come, in seconds as far as they are known: for the progress that people see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from workload.describe import measured_mixes, run_extent
from workload.experiment import RunSpec, Study


class Ahead(NamedTuple):
    """Seconds of the runs behind the present one, without engine starts; ``more`` where some of them are not known yet."""

    seconds: float
    more: bool


class Agenda:
    """The runs and the capacity measurements of a study that have not begun."""

    def __init__(self, study: Study, runs: Sequence[RunSpec]) -> None:
        self._runs = list(runs)
        self._loops = 2 * len(measured_mixes(study, runs))  # before and after
        self._loop_s = study.calibration.warmup + study.calibration.seconds

    def begin_run(self, run: RunSpec) -> None:
        self._runs.remove(run)

    def begin_loop(self) -> None:
        self._loops -= 1

    def drop(self, runs: Sequence[RunSpec], mixes: int) -> None:
        """``runs`` and the capacities of so many mixes are there already."""
        for run in runs:
            self._runs.remove(run)
        self._loops -= 2 * mixes

    def ahead(self, rate_of: Callable[[RunSpec], float | None]) -> Ahead:
        """What is left; ``rate_of`` gives the requests per second of a run, where that is known."""
        seconds, more = self._loops * self._loop_s, False
        for run in self._runs:
            fixed_s, counted = run_extent(run)
            rate = rate_of(run)
            seconds += fixed_s + (counted / rate if rate is not None else 0.0)
            more |= rate is None and counted > 0
        return Ahead(seconds, more)
