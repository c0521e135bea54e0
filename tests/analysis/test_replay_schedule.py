"""The schedule replayed from receipts and step boundaries alone: equal where it is the same engine, told apart where not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.simulation.facts import EngineFacts
from analysis.simulation.schedule import replay_schedule
from engine.config import EngineConfig
from engine.executors.base import BatchShape
from workload.loops import OpenLoop, RequestList
from workload.phases import Phases


def recorded_run(**options: object) -> Run:
    """A run with uneven step times, shared prefixes and outputs that end by themselves, its prompts recorded."""
    rng = np.random.default_rng(1)
    prefix = rng.integers(0, 30_000, size=40)
    n = 120
    prompts = [
        np.concatenate([prefix, rng.integers(0, 30_000, size=rng.integers(2, 60))]).astype(np.int32) for _ in range(n)
    ]
    output = rng.geometric(1 / 20, size=n)
    requests = RequestList(prompts, output, predicted=output)
    times = np.cumsum(rng.exponential(1 / 30, size=n))
    settings = {"max_num_seqs": 8, "num_kv_blocks": 512, "block_size": 16, "max_model_len": 1024, **options}

    def step(shape: BatchShape) -> float:
        return float((5e-3 + 5e-4 * shape.decode_seqs + 5e-5 * shape.prefill_tokens) * rng.uniform(0.8, 1.3))

    config = EngineConfig(**settings)  # type: ignore[arg-type]
    run = simulate_engine(OpenLoop(times, requests), step, config, gap_s=2e-4, phases=Phases(0.5, 3.0))
    kept = pd.DataFrame(
        {"request_id": [str(i) for i in range(n)], "token_ids": [prompt.tolist() for prompt in prompts]}
    )
    # the engine of a real process has stepped before
    steps, batch = run.steps.assign(step=run.steps["step"] + 700), run.batch.assign(step=run.batch["step"] + 700)
    seen = run.requests["visible_step"]
    rows = run.requests.assign(visible_step=seen.where(seen < 0, seen + 700))
    return Run.from_tables(rows, steps, batch, run.gauge, run.tokens, kept, run.meta)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "sjf", "ageing": 5.0},
        {"policy": "prefill_first", "max_num_batched_tokens": 32},
        {"policy": "static_batch"},
        {"num_kv_blocks": 24, "watermark": 0.0},
        {"enable_prefix_caching": False},
    ],
    ids=lambda options: "-".join(map(str, options)) or "defaults",
)
def test_every_step_is_scheduled_as_it_was(options: dict[str, object]) -> None:
    run = recorded_run(**options)
    found = replay_schedule(run)
    assert found.equal, str(found)
    assert found.steps > 300
    if "num_kv_blocks" in options:
        assert run.steps["preempted"].sum() > 0


@pytest.mark.parametrize(
    "change",
    [{"policy": "sjf"}, {"num_kv_blocks": 500}, {"max_num_seqs": 7}, {"enable_prefix_caching": False}],
    ids=str,
)
def test_another_engine_is_told_apart(change: dict[str, object]) -> None:
    run = recorded_run()
    found = replay_schedule(run, EngineFacts.of(run, change))
    assert found.different > 0
    assert "first step" in str(found)


def test_a_lost_request_and_a_changed_length_are_told_apart() -> None:
    run = recorded_run()
    tables = (run.steps, run.batch, run.gauge, run.tokens, run.prompts, run.meta)
    lost = Run.from_tables(run.requests.drop(index=10), *tables)
    assert not replay_schedule(lost).equal
    longer = run.requests.copy()
    longer.loc[10, "max_tokens"] += 1
    assert not replay_schedule(Run.from_tables(longer, *tables)).equal


def test_a_run_without_its_batches_cannot_be_compared() -> None:
    run = recorded_run()
    with pytest.raises(ValueError, match="'batch'"):
        replay_schedule(Run.from_tables(run.requests, run.steps, meta=run.meta))
