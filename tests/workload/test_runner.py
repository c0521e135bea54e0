"""A whole study in virtual time: calibration, loads, closed loops and sessions, exact and in a second."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.capacity import Capacity, capacity
from analysis.littles_law import littles_law
from analysis.runs import Run, open_run
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from engine.executors.step_time import LinearStepTime
from engine.scheduler import Scheduler
from workload.experiment import load_study
from workload.reporting import Quiet
from workload.runner import StudyRunner
from workload.targets.inline import InlineTarget, VirtualClock

STUDY = """\
version: 1
model: random:tiny-llama
seed: 3
engine: {executor: emulated, step_time: {base_s: 0.004, decode_seqs: 0.001, prefill_tokens: 0.0005}, max_num_seqs: 8}
calibration: {warmup: 2, seconds: 60, grid_rounds: 1}
workload:
  prompt: {dist: uniform, min: 4, max: 20}
  output: {dist: geometric, mean: 8, max: 40}
experiments:
  - name: open
    arrivals: {process: poisson, load: [0.4, 0.7]}
    warmup: {seconds: 5}
    measure: {requests: 800}
  - name: closed
    arrivals: {process: closed, clients: 5, think: {dist: exponential, mean: 0.1}}
    warmup: {seconds: 5}
    measure: {seconds: 60}
  - name: impatient
    engine: {max_num_seqs: 1, policy: priority}
    arrivals: {process: poisson, rate: 60}
    max_concurrency: 6
    timeout: {seconds: 0.4}
    priority: {values: [0, 3], shares: [0.25, 0.75]}
    record: {tokens: false, prompts: true}
    warmup: {seconds: 1}
    measure: {seconds: 20}
    cooldown: {seconds: 2}
  - name: talk
    arrivals: {process: sessions, rate: 6, turns: 3, think: 0.2}
    warmup: {seconds: 2}
    measure: {seconds: 40}
"""


def inline(config: EngineConfig) -> InlineTarget:
    clock = VirtualClock()
    executor = SimulatedExecutor(
        LinearStepTime.from_mapping(config.step_time),
        PlaceholderTokens(),
        block_size=16,
        num_kv_blocks=2048,
        max_model_len=512,
    )
    scheduler = Scheduler(config, executor.num_kv_blocks, executor.block_size, executor.max_model_len)
    target = InlineTarget(EngineCore(scheduler, executor, clock=clock), clock)
    target.info |= {"vocab_size": 512, "special_token_ids": [0], "max_model_len": 512}
    return target


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.yaml").write_text(STUDY)
    study = load_study(folder / "study.yaml")
    runner = StudyRunner(
        study,
        folder / "results",
        start_target=inline,
        capacity_of=lambda path: capacity(open_run(path)),
        reporter=Quiet(),
    )
    directories = runner.run(study.runs)
    assert [str(path.relative_to(folder / "results")) for path in directories] == [run.run_dir for run in study.runs]
    return folder / "results"


def only(results: Path, experiment: str, point: str | None = None) -> Run:
    (path,) = (results / experiment).glob(f"{point or '*'}/0")
    return open_run(path)


def test_the_offered_rate_is_the_load_times_the_measured_capacity(results: Path) -> None:
    found = capacity(open_run(results / "calibration" / "open" / "saturated-before"))
    for load in (0.4, 0.7):
        run = only(results, "open", f"load={load}")
        assert run.meta["rate"] == pytest.approx(load * found.rate)
        assert (run.requests["phase"] == "measure").sum() == 800


def test_the_points_of_a_sweep_share_arrivals_and_lengths(results: Path) -> None:
    light, heavy = (only(results, "open", f"load={load}").requests.set_index("request_id") for load in (0.4, 0.7))
    both = light.index.intersection(heavy.index)
    assert len(both) > 700
    assert (
        (light.loc[both, ["prompt_tokens", "max_tokens"]] == heavy.loc[both, ["prompt_tokens", "max_tokens"]])
        .all()
        .all()
    )
    ratio = light.loc[both, "intended_s"] / heavy.loc[both, "intended_s"]
    assert ratio.to_numpy() == pytest.approx(0.7 / 0.4)


def test_calibration_before_and_after_completes_the_same_requests_in_the_same_time(results: Path) -> None:
    before, after = (
        open_run(results / "calibration" / "open" / f"saturated-{when}").requests.set_index("request_id")
        for when in ("before", "after")
    )
    both = before.index.intersection(after.index)
    assert (before.loc[both, "max_tokens"] == after.loc[both, "max_tokens"]).all()
    times = [(rows.loc[both, "finished_s"] - rows.loc[both, "sent_s"]).mean() for rows in (before, after)]
    assert times[1] == pytest.approx(times[0], rel=1e-6)


def test_the_grid_covers_the_batch_sizes_up_to_the_seats(results: Path) -> None:
    steps = open_run(results / "calibration" / "open" / "grid").steps
    decodes = steps[steps["prefill_seqs"] == 0]["decode_seqs"]
    assert {1, 2, 4, 8} <= set(decodes)


def test_closed_clients_obey_n_equals_x_times_r_plus_z(results: Path) -> None:
    rows = only(results, "closed").requests
    rows = rows[rows["finished_s"].notna()]
    assert rows["session_id"].nunique() == 5
    client = rows.sort_values(["session_id", "intended_s"])
    think = (client["intended_s"] - client.groupby("session_id")["finished_s"].shift()).dropna()
    assert (think >= -1e-9).all()
    span = rows["finished_s"].max() - rows["intended_s"].min()
    cycle = (rows["finished_s"] - rows["intended_s"]).mean() + think.mean()
    assert len(rows) / span * cycle == pytest.approx(5, rel=0.02)


def test_a_turns_prompt_is_the_whole_conversation_and_waits_for_the_answer(results: Path) -> None:
    run = only(results, "talk")
    rows = run.requests[run.requests["finish_reason"] == "length"].sort_values(["session_id", "turn"])
    prompts = run.prompts.set_index("request_id")["token_ids"]
    pairs = 0
    for _, session in rows.groupby("session_id"):
        for first, second in zip(session.itertuples(), session.iloc[1:].itertuples(), strict=False):
            assert second.turn == first.turn + 1
            assert second.intended_s == pytest.approx(first.finished_s + 0.2)
            assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
            before = list(prompts[first.request_id])
            assert list(prompts[second.request_id])[: len(before)] == before
            pairs += 1
    assert pairs > 100
    assert rows.loc[rows["turn"] > 0, "cached_tokens"].sum() > 0


def test_timeout_cap_priorities_and_what_is_recorded_are_keys_of_the_study(results: Path) -> None:
    run = only(results, "impatient")
    rows = run.requests
    in_flight = [((rows["sent_s"] <= t) & (rows["finished_s"] > t)).sum() for t in rows["sent_s"].dropna()]
    assert max(in_flight) == 6
    assert {"length", "timeout"} <= set(rows["finish_reason"].dropna())
    assert (rows["finished_s"] - rows["intended_s"]).max() <= 0.4 + 0.02
    assert set(rows["priority"]) == {0, 3}
    n = len(rows)
    assert (rows["priority"] == 0).sum() == pytest.approx(n / 4, abs=4 * (n * 3 / 16) ** 0.5)
    served = (rows["finish_reason"] == "length").groupby(rows["priority"]).mean()
    assert served[0] > served[3]
    assert run.recorded("prompts")
    assert not run.recorded("tokens")
    assert only(results, "open", "load=0.4").recorded("tokens")


def test_every_run_closes_littles_law_and_says_what_it_was(results: Path) -> None:
    for path in sorted(results.glob("*/*/0")):
        run = open_run(path)
        assert littles_law(run).verdict == "closed", path
        meta = json.loads((path / "run.json").read_text())
        assert meta["status"] == "complete"
        assert isinstance(run.requests, pd.DataFrame)
        assert sum(meta["counts"].values()) == len(run.requests)


def test_a_loop_with_too_few_completions_is_run_again_for_longer(tmp_path: Path) -> None:
    text = STUDY.replace("seconds: 60, grid", "seconds: 1, grid").split("  - name: closed")[0]
    (tmp_path / "study.yaml").write_text(
        text.replace("load: [0.4, 0.7]", "load: 0.4").replace("requests: 800", "requests: 20")
    )
    study = load_study(tmp_path / "study.yaml")
    tried: list[int] = []

    def picky(path: Path) -> Capacity:
        found = capacity_by_count(open_run(path))
        tried.append(found)
        if found < 150:
            raise ValueError(f"too short: {found} completions")
        return capacity(open_run(path))

    runner = StudyRunner(study, tmp_path / "results", start_target=inline, capacity_of=picky, reporter=Quiet())
    runner.run(study.runs)
    assert tried == sorted(tried[:2]) + tried[2:]
    assert len(tried) >= 3
    assert tried[0] < 150 <= tried[-1]


def capacity_by_count(run: Run) -> int:
    start_s, end_s = run.window
    return int(run.requests["finished_s"].between(start_s, end_s).sum())
