"""Capacity and drift on saturated runs in virtual time, where the truth can be worked out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.capacity import capacity, drift, saturated
from analysis.intervals import TooShort
from analysis.runs import Run
from analysis.simulation import simulate_engine
from engine.config import EngineConfig
from engine.executors.base import BatchShape
from engine.executors.step_time import LinearStepTime
from workload.loops import ClosedLoop, OpenLoop, RequestList
from workload.phases import Phases

SEATS = 4
CONFIG = EngineConfig(max_num_seqs=SEATS, num_kv_blocks=512, block_size=16, max_model_len=2048)
STEP = LinearStepTime(base_s=5e-3, decode_seqs=5e-4, prefill_tokens=5e-5)


def requests(output: np.ndarray | list[int], seed: int = 1) -> RequestList:
    rng = np.random.default_rng(seed)
    return RequestList([rng.integers(0, 30_000, size=20).astype(np.int32) for _ in output], output)


def saturated_run(
    slower: float = 1.0, seconds: float = 12.0, outputs: list[int] | None = None, jitter: float = 0.0
) -> Run:
    lengths = np.random.default_rng(2).geometric(1 / 12, size=800) if outputs is None else outputs
    noise = np.random.default_rng(3)

    def step(shape: BatchShape) -> float:
        return STEP(shape) * slower * (1 + jitter * noise.random())

    return simulate_engine(ClosedLoop(2 * SEATS, requests(lengths)), step, CONFIG, phases=Phases(1.0, 1.0 + seconds))


def test_capacity_of_equal_requests_is_worked_out_by_hand() -> None:
    # 4 requests run in lockstep: one step of 4 prompts (20 tokens each), then 9 of 4 decodes
    cycle = (5e-3 + 80 * 5e-5) + 9 * (5e-3 + 4 * 5e-4)
    found = capacity(saturated_run(outputs=[10] * 1200))
    assert found.low <= SEATS / cycle <= found.high
    assert found.rate == pytest.approx(SEATS / cycle, rel=SEATS / found.n)  # a cycle more or less at the ends


def test_the_interval_holds_the_capacity_of_a_long_run() -> None:
    long = capacity(saturated_run(seconds=50.0, outputs=np.random.default_rng(4).geometric(1 / 12, size=5000).tolist()))
    short = capacity(saturated_run(seconds=12.0))
    assert short.low <= long.rate <= short.high
    assert long.high - long.low < 0.7 * (short.high - short.low)


def test_only_the_time_without_lost_seats_counts() -> None:
    run = saturated_run()
    steps = run.steps.copy()
    steps.loc[steps["start_s"].between(4.0, 4.5), ["inbox", "waiting"]] = 0
    steps.loc[steps["start_s"].between(4.0, 4.5), "running"] = 3
    start, end = saturated(Run.from_tables(run.requests, steps, meta=run.meta))
    assert start == pytest.approx(4.5, abs=0.02)
    assert end == pytest.approx(13.0, abs=0.02)


def test_a_run_in_which_nobody_waits_has_no_capacity() -> None:
    times = np.arange(1, 40) * 0.5
    run = simulate_engine(OpenLoop(times, requests([5] * 40)), STEP, CONFIG, phases=Phases(1.0, 15.0))
    with pytest.raises(ValueError, match="nobody waited"):
        capacity(run)
    with pytest.raises(ValueError, match="did not record"):
        capacity(Run.from_tables(run.requests, meta=run.meta))


def test_too_few_completions_are_refused() -> None:
    with pytest.raises(TooShort):
        capacity(saturated_run(seconds=0.5))


def test_ten_percent_slower_is_drifted_and_two_percent_is_steady() -> None:
    before = saturated_run(jitter=0.02)
    slower = drift(before, saturated_run(slower=1.1))
    assert slower.low <= 0.1 / 1.01 + 0.005
    assert slower.ratio == pytest.approx(1.1 / 1.01 - 1, abs=0.01)
    assert slower.drifted
    assert slower.verdict == "drifted"
    steady = drift(before, saturated_run(slower=1.03, jitter=0.0))
    assert steady.ratio == pytest.approx(1.03 / 1.01 - 1, abs=0.01)
    assert steady.verdict == "steady"
    assert not steady.drifted
    assert drift(before, saturated_run(slower=0.9)).drifted


def test_drift_pairs_the_same_requests_so_that_it_is_far_sharper_than_two_capacities() -> None:
    before, after = saturated_run(), saturated_run(slower=1.08)
    paired = drift(before, after)
    capacities = capacity(before), capacity(after)
    assert paired.low <= 0.08 + 1e-9
    assert paired.high >= 0.08 - 1e-9
    unpaired = (capacities[0].high - capacities[0].low) / capacities[0].rate
    assert paired.high - paired.low < 0.2 * unpaired


def test_requests_that_only_one_calibration_finished_are_left_out() -> None:
    before, after = saturated_run(seconds=12.0), saturated_run(seconds=8.0)
    both = set(before.requests["request_id"]) & set(after.requests["request_id"])
    found = drift(before, after)
    assert found.n <= len(both)
    assert found.ratio == pytest.approx(0.0, abs=1e-9)
    renamed = after.requests.assign(request_id="other-" + after.requests["request_id"])
    with pytest.raises(TooShort):
        drift(before, Run.from_tables(pd.DataFrame(renamed), meta=after.meta))
