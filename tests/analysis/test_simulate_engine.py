"""The simulated engine against an independent driver of the same core, against Lindley, and against itself replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.fit.step_time import fit_step_time
from analysis.runs import Run, open_run
from analysis.simulation import simulate_engine
from analysis.simulation.facts import EngineFacts
from analysis.simulation.offers import Offered, offer_again
from analysis.simulation.recursions import lindley
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from engine.executors.step_time import LinearStepTime
from engine.scheduler import Scheduler
from workload.driver import Driver
from workload.loops import ClosedLoop, Loop, OpenLoop, RequestList
from workload.phases import Phases
from workload.plan import RequestPlan
from workload.run_directory import ClientTables, RunDirectory
from workload.targets.inline import InlineTarget, VirtualClock

STEP = LinearStepTime(base_s=5e-3, decode_seqs=5e-4, prefill_tokens=5e-5, kv_tokens=1e-7)
BLOCK, MODEL_LEN = 16, 2048


def config(**options: object) -> EngineConfig:
    defaults = {"max_num_seqs": 8, "num_kv_blocks": 512, "block_size": BLOCK, "max_model_len": MODEL_LEN}
    return EngineConfig(**{**defaults, **options})  # type: ignore[arg-type]


def request_list(n: int, seed: int, shared_prefix: int = 0) -> RequestList:
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, 30_000, size=shared_prefix).astype(np.int32)
    prompts = [
        np.concatenate([prefix, rng.integers(0, 30_000, size=rng.integers(2, 80)).astype(np.int32)]) for _ in range(n)
    ]
    output = rng.geometric(1 / 20, size=n)
    return RequestList(prompts, output, predicted=output)


def arrivals(n: int, rate: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, size=n))


def driven(loop: Loop, options: EngineConfig, folder: Path, phases: Phases, gap_s: float) -> Run:
    """The same core under the workload driver and the inline target: no simpy, no code of the simulator."""
    clock = VirtualClock()
    blocks = int(options.num_kv_blocks or 0)
    executor = SimulatedExecutor(
        STEP, PlaceholderTokens(), block_size=BLOCK, num_kv_blocks=blocks, max_model_len=MODEL_LEN
    )
    core = EngineCore(Scheduler(options, blocks, BLOCK, MODEL_LEN), executor, max_queue=options.max_queue, clock=clock)
    target = InlineTarget(core, clock, gap_s)
    directory = RunDirectory(folder / "run")
    target.start_run(directory.path, 0.0)
    tables = ClientTables(directory.path, 0.0, record_prompts=True)
    result = Driver(target, loop, phases, tables, origin_s=0.0, cooldown_limit_s=1.0).run()
    target.finish_run()
    tables.close()
    window = {
        "measure_start_s": result.measure_start_s,
        "measure_end_s": result.measure_end_s,
        "end_s": result.end_s,
    }
    directory.write_meta({"window": window, "status": "complete"})
    return open_run(directory.complete())


def assert_equal_runs(simulated: Run, other: Run) -> None:
    """Same steps, same members, same requests; stamps to the rounding of the two clocks' sums.

    Up to the end of the simulated run: the driver looks whether a run is over only when it wakes again, up to a step later.
    """
    common = simulated.steps["step"].max()
    for name, key in (("steps", "step"), ("batch", "step"), ("requests", "request_id")):
        left, right = (getattr(run, name).sort_values(key, kind="stable") for run in (simulated, other))
        if name == "requests":
            cut_off = [sorted(rows.loc[rows["finish_reason"].isna(), "request_id"]) for rows in (left, right)]
            assert cut_off[0] == cut_off[1]
            left, right = (rows[rows["finish_reason"].notna()] for rows in (left, right))
        else:
            right = right[right["step"] <= common]
            assert len(getattr(other, name)) - len(right) <= 20
        if name == "steps":
            left, right = (
                left.drop(columns="idle_s"),
                right.drop(columns="idle_s"),
            )  # the inline target has no idle time
        left, right = left.reset_index(drop=True), right.reset_index(drop=True)
        pd.testing.assert_frame_equal(left, right, check_exact=False, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": "sjf", "ageing": 5.0},
        {"policy": "prefill_first", "max_num_batched_tokens": 32},
        {"policy": "static_batch"},
        {"num_kv_blocks": 24, "watermark": 0.0},
        {"max_queue": 1, "max_num_seqs": 5},
    ],
    ids=lambda options: "-".join(map(str, options)) or "defaults",
)
def test_equal_step_by_step_to_the_driver_on_an_inline_target(options: dict[str, object], tmp_path: Path) -> None:
    requests, times, phases = request_list(150, seed=1, shared_prefix=40), arrivals(150, 28.0, seed=2), Phases(1.0, 4.0)
    expected = driven(OpenLoop(times, requests), config(**options), tmp_path, phases, gap_s=3e-4)
    simulated = simulate_engine(
        OpenLoop(times, requests), STEP, config(**options), gap_s=3e-4, phases=phases, cooldown_limit_s=1.0
    )
    assert_equal_runs(simulated, expected)
    assert (simulated.requests["cached_tokens"] > 0).any()
    if "num_kv_blocks" in options:
        assert simulated.requests["preemptions"].sum() > 0
    if "max_queue" in options:
        assert (simulated.requests["finish_reason"] == "refused").any()


def test_a_closed_loop_is_equal_step_by_step_too(tmp_path: Path) -> None:
    requests, phases = request_list(60, seed=3), Phases(0.5, 2.0)
    think = iter(np.random.default_rng(5).exponential(0.02, size=1000).tolist())
    again = iter(np.random.default_rng(5).exponential(0.02, size=1000).tolist())
    loop = ClosedLoop(12, requests, think=lambda client: next(think), stagger_s=0.1)
    expected = driven(loop, config(), tmp_path, phases, gap_s=0.0)
    loop = ClosedLoop(12, requests, think=lambda client: next(again), stagger_s=0.1)
    simulated = simulate_engine(loop, STEP, config(), phases=phases, cooldown_limit_s=1.0)
    assert_equal_runs(simulated, expected)


def test_a_run_offered_again_with_its_own_step_times_happens_again(tmp_path: Path) -> None:
    requests, times, phases = request_list(120, seed=6, shared_prefix=40), arrivals(120, 25.0, seed=7), Phases(0.0, 9.0)
    options = config(num_kv_blocks=40)
    measured = driven(OpenLoop(times, requests), options, tmp_path, phases, gap_s=2e-4)
    again = simulate_engine(measured, STEP, options, gap_s=2e-4)
    assert_equal_runs(again, measured)


@pytest.mark.parametrize("stagger_s", [0.0, 0.2])
def test_a_closed_loop_offered_again_is_the_same_closed_loop(stagger_s: float) -> None:
    loop = ClosedLoop(12, request_list(400, seed=20), stagger_s=stagger_s)
    first = simulate_engine(loop, STEP, config(), phases=Phases(0.5, 3.0), gap_s=1e-4)
    again = simulate_engine(first, STEP, gap_s=1e-4)
    assert_equal_runs(again, first)


def one_seat_plan(n: int, seed: int) -> RequestPlan:
    rng = np.random.default_rng(seed)
    output = rng.geometric(1 / 12, size=n)
    return RequestPlan(
        intended_s=np.cumsum(rng.exponential(0.12, size=n)),
        prompt_tokens=rng.integers(1, 90, size=n),
        output_tokens=output,
        predicted_output_tokens=output,
        phases=np.full(n, "measure"),
        measure_start_s=0.0,
        measure_end_s=1e9,
    )


def test_one_seat_is_the_path_of_lindley() -> None:
    plan = one_seat_plan(400, seed=8)
    run = simulate_engine(plan, STEP, config(max_num_seqs=1), gap_s=1e-4)
    services = []
    for prompt, output in zip(plan.prompt_tokens.tolist(), plan.output_tokens.tolist(), strict=True):
        contexts = prompt + np.arange(1, output)  # of each decode: all known tokens
        steps = STEP.base_s + STEP.prefill_tokens * prompt
        steps += (STEP.base_s + STEP.decode_seqs + STEP.kv_tokens * contexts).sum()
        services.append(steps + output * 1e-4)  # a gap after each step
    requests = run.requests.set_index("request_id").loc[[str(i) for i in range(len(plan))]]
    expected = lindley(plan.intended_s, services)
    # a request that arrives in the gap after the last step finds the seat free but waits for the gap
    np.testing.assert_allclose(requests["wait_first"].to_numpy(), expected, atol=1e-9)


def test_transit_is_added_outside_the_engine_and_stages_add_up() -> None:
    requests, times = request_list(80, seed=9), arrivals(80, 20.0, seed=10)
    offered = Offered(OpenLoop(times, requests), Phases(0.0, 10.0), mean_transit_in_s=2e-3, transit_out_s=1e-3)
    rows = simulate_engine(offered, STEP, config()).requests
    np.testing.assert_allclose(rows["received_s"] - rows["sent_s"], 2e-3, atol=1e-12)
    np.testing.assert_allclose(rows["finished_s"] - rows["done_s"], 1e-3, atol=1e-12)
    running = rows["done_s"] - rows["received_s"] - rows["wait_total"]
    np.testing.assert_allclose(
        rows["lag"] + 2e-3 + rows["wait_total"] + running + 1e-3, rows["finished_s"] - rows["intended_s"], atol=1e-9
    )


def fitted_run() -> Run:
    requests, times = request_list(200, seed=11), arrivals(200, 22.0, seed=12)
    return simulate_engine(OpenLoop(times, requests), STEP, config(), gap_s=2e-4, phases=Phases(1.0, 8.0))


def test_the_fit_of_a_run_without_noise_predicts_another_load_exactly() -> None:
    model = fit_step_time(fitted_run())
    assert model.misfit.rms < 1e-6
    assert model.gap_s == pytest.approx(2e-4, rel=1e-6)
    requests, times, phases = request_list(200, seed=13), arrivals(200, 26.0, seed=14), Phases(1.0, 7.0)
    predicted = simulate_engine(OpenLoop(times, requests), model, config(), phases=phases, noise=False)
    truth = simulate_engine(OpenLoop(times, requests), STEP, config(), gap_s=2e-4, phases=phases)
    np.testing.assert_allclose(predicted.requests["done_s"], truth.requests["done_s"], rtol=1e-4)
    assert predicted.meta["simulation"]["extrapolated_steps"] < 0.1 * len(predicted.steps)


def test_noise_is_repeatable_by_its_seed() -> None:
    model = fit_step_time(fitted_run())
    requests, times = request_list(50, seed=13), arrivals(50, 20.0, seed=14)

    def ends(seed: int) -> np.ndarray:
        run = simulate_engine(OpenLoop(times, requests), model, config(), phases=Phases(0, 9), seed=seed)
        return run.requests["done_s"].to_numpy()

    np.testing.assert_array_equal(ends(1), ends(1))


def test_the_count_of_blocks_comes_from_the_run_and_a_tampered_one_is_noticed() -> None:
    run = fitted_run()
    assert EngineFacts.of(run).num_kv_blocks == 512
    assert EngineFacts.of(run, {"num_kv_blocks": 99}).num_kv_blocks == 99
    run.meta["engine"]["num_kv_blocks"] = 300
    with pytest.warns(UserWarning, match="300"):
        EngineFacts.of(run)


def test_what_is_not_known_of_the_engine_is_an_error_that_names_it() -> None:
    plan = one_seat_plan(5, seed=1)
    with pytest.raises(ValueError, match="whose engine"):
        simulate_engine(plan, STEP)
    with pytest.raises(ValueError, match="num_kv_blocks"):
        simulate_engine(plan, STEP, EngineConfig())
    with pytest.raises(ValueError, match="seats"):
        simulate_engine(plan, STEP, config(), changes={"seats": 3})
    with pytest.raises(ValueError, match="phases="):
        simulate_engine(OpenLoop(np.empty(0), request_list(1, seed=1)), STEP, config())


def test_another_execution_is_refused() -> None:
    run = fitted_run()
    run.meta["fingerprints"]["execution"] = {"dtype": "float32", "digest": "aaaa"}
    model = fit_step_time(run)
    run.meta["fingerprints"]["execution"] = {"dtype": "bfloat16", "digest": "bbbb"}
    with pytest.raises(ValueError, match=r"aaaa.*bbbb"):
        simulate_engine(run, model)


def test_prefix_hits_without_recorded_prompts_cannot_be_replayed() -> None:
    requests, times = request_list(40, seed=15, shared_prefix=64), arrivals(40, 20.0, seed=16)
    run = simulate_engine(OpenLoop(times, requests), STEP, config(), phases=Phases(0, 9))
    assert (run.requests["cached_tokens"] > 0).any()
    with pytest.raises(ValueError, match="prompts were not"):
        offer_again(run)


def test_what_is_left_at_the_limit_is_censored_and_every_request_is_accounted_for() -> None:
    requests, times = request_list(200, seed=17), arrivals(200, 80.0, seed=18)
    run = simulate_engine(OpenLoop(times, requests), STEP, config(), phases=Phases(0.0, 1.0), cooldown_limit_s=0.5)
    censored = run.requests["finish_reason"].isna()
    assert censored.any()
    assert run.requests.loc[censored, "done_s"].isna().all()
    assert run.requests["request_id"].is_unique
    assert run.meta["window"]["end_s"] == pytest.approx(1.5)
    assert run.gauge.iloc[-1][["inbox", "waiting", "running"]].sum() == 0
