"""A timer of 1 ms rounded every deadline, and a generator that fell behind re-anchored its plan: arrivals were lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

from tests.bugs.scripted_target import Answer, ScriptedTarget, drive, requests, table
from workload.arrivals import arrival_times
from workload.loops import OpenLoop

RATE = 2000.0


def answer_at_once(request: object) -> Answer:
    return [(0.0, (7,), "length")]


def test_two_thousand_a_second_are_sent_at_the_planned_moments_without_a_comb(tmp_path: Path) -> None:
    times = arrival_times({"process": "poisson", "rate": RATE}, n=6000, seed=3)
    target = ScriptedTarget(answer_at_once)
    drive(target, OpenLoop(times, requests(len(times))), tmp_path)
    sent = np.array([when for when, _ in target.sent])
    assert np.array_equal(sent, times)  # every slot, to the last digit: the clock is virtual
    assert stats.kstest(np.diff(sent), "expon", args=(0, 1 / RATE)).pvalue > 0.001
    phases = np.histogram(sent % 1e-3, bins=20, range=(0, 1e-3))[0]
    assert stats.chisquare(phases).pvalue > 0.001
    combed = np.ceil(sent * 1e3) / 1e3  # the fault would be seen
    assert stats.kstest(np.diff(combed), "expon", args=(0, 1 / RATE)).pvalue < 1e-6


def test_a_generator_that_fell_behind_sends_every_slot_and_keeps_its_plan(tmp_path: Path) -> None:
    times = arrival_times({"process": "constant", "rate": RATE}, n=2000, seed=0)

    class Stalling(ScriptedTarget):
        def submit(self, request: object) -> None:
            if len(self.sent) == 500:
                self._now_s += 0.1  # 200 slots pass meanwhile
            super().submit(request)  # type: ignore[arg-type]

    target = Stalling(answer_at_once)
    _, run = drive(target, OpenLoop(times, requests(len(times))), tmp_path)
    rows = table(run).sort_values("intended_s")
    assert np.array_equal(rows["intended_s"].to_numpy(), times)
    late = rows["lag"] > 1e-6
    assert 199 <= late.sum() <= 202
    assert (rows["sent_s"].to_numpy()[-1000:] == times[-1000:]).all()  # back on the plan, not shifted by 0.1 s
