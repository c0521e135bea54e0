"""The driver against an engine in virtual time (exact) and against a known queue in real time."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.simulation.recursions import kiefer_wolfowitz, lindley
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from engine.executors.step_time import LinearStepTime
from engine.scheduler import Scheduler
from workload.driver import Driver, DriveResult
from workload.loops import BatchLoop, ClosedLoop, Loop, OpenLoop, RequestList
from workload.phases import Phases
from workload.run_directory import ClientTables, RunDirectory
from workload.targets.base import Target, TargetEvent, TargetFailed
from workload.targets.inline import InlineTarget, VirtualClock
from workload.targets.stub import StubTarget

STEP_S = 0.01


def inline_target(*, step_time: LinearStepTime | None = None, **options: object) -> InlineTarget:
    """An engine in virtual time whose steps take 10 ms."""
    clock = VirtualClock()
    config = EngineConfig.from_options(**{"max_num_seqs": 1, **options})
    executor = SimulatedExecutor(
        step_time or LinearStepTime(base_s=STEP_S),
        PlaceholderTokens(),
        block_size=16,
        num_kv_blocks=4096,
        max_model_len=4096,
    )
    scheduler = Scheduler(config, executor.num_kv_blocks, executor.block_size, executor.max_model_len)
    return InlineTarget(EngineCore(scheduler, executor, max_queue=config.max_queue, clock=clock), clock)


def request_list(output_tokens: list[int]) -> RequestList:
    return RequestList([np.array([1, 2, 3], dtype=np.int32)] * len(output_tokens), output_tokens)


def drive(
    target: Target, loop: Loop, folder: Path, phases: Phases | None = None, **options: object
) -> tuple[DriveResult, pd.DataFrame]:
    """One run; its result and its requests in order of arrival."""
    directory = RunDirectory(folder / "run")
    origin_s = target.now()
    tables = ClientTables(directory.path, origin_s)
    target.start_run(directory.path, origin_s)
    driver = Driver(target, loop, phases or Phases(0.0, float("inf")), tables, origin_s=origin_s, **options)  # type: ignore[arg-type]
    result = driver.run()
    target.finish_run()
    tables.close()
    path = directory.complete()
    return result, pq.read_table(path / "requests.parquet").to_pandas().sort_values("intended_s", ignore_index=True)


def test_one_seat_in_virtual_time_is_lindleys_recursion_to_the_last_digit(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.1, 300))
    outputs = rng.geometric(1 / 8, 300)
    _, requests = drive(inline_target(), OpenLoop(times, request_list(outputs.tolist())), tmp_path)
    services = outputs * STEP_S
    wait, free = [], -1.0
    for arrival, service in zip(times, services, strict=True):
        start = max(arrival, free)
        wait.append(start - arrival)
        free = start + service
    assert requests["wait_first"].to_numpy() == pytest.approx(wait, abs=1e-9)
    assert requests["wait_first"].to_numpy() == pytest.approx(lindley(times, services), abs=1e-9)
    assert (requests["finished_s"] - requests["intended_s"]).to_numpy() == pytest.approx(wait + services, abs=1e-9)
    assert (requests["lag"].abs() < 1e-9).all()


def test_the_stages_add_up_to_the_whole(tmp_path: Path) -> None:
    times = np.linspace(0.0, 1.0, 40)
    target = inline_target(max_num_seqs=3)
    _, rows = drive(target, OpenLoop(times, request_list([7] * 40)), tmp_path)
    running = rows["done_s"] - rows["received_s"] - rows["wait_total"]
    transit = rows["received_s"] - rows["sent_s"] + rows["finished_s"] - rows["done_s"]
    parts = rows["lag"] + rows["cap_wait"] + rows["wait_total"] + running + transit
    assert parts.to_numpy() == pytest.approx((rows["finished_s"] - rows["intended_s"]).to_numpy())
    assert (running >= 7 * STEP_S - 1e-9).all()


def test_a_phase_is_told_by_the_intended_arrival_and_arrivals_go_on_until_the_measured_have_ended(
    tmp_path: Path,
) -> None:
    times = np.arange(0.0, 60.0, 0.05)  # twice what one seat can do: a backlog at the end of the measured phase
    loop = OpenLoop(times, request_list([10] * len(times)))
    result, rows = drive(inline_target(), loop, tmp_path, Phases(1.0, 3.0), cooldown_limit_s=30.0)
    assert set(rows.loc[rows["intended_s"] < 1.0, "phase"]) == {"warmup"}
    measured = rows[rows["phase"] == "measure"]
    assert len(measured) == 40
    assert measured["finished_s"].notna().all()
    cooldown = rows[rows["phase"] == "cooldown"]
    assert cooldown["intended_s"].max() == pytest.approx(measured["finished_s"].max(), abs=0.06)
    assert result.end_s == pytest.approx(measured["finished_s"].max())


def test_requests_in_flight_at_the_limit_are_censored_and_counted_not_dropped(tmp_path: Path) -> None:
    times = np.arange(0.0, 10.0, 0.05)
    result, rows = drive(
        inline_target(),
        OpenLoop(times, request_list([10] * len(times))),
        tmp_path,
        Phases(0.0, 3.0),
        cooldown_limit_s=1.0,
    )
    assert result.end_s == pytest.approx(4.0, abs=0.02)
    assert len(rows) == (times < result.end_s).sum()
    assert result.counts["censored"] == rows["finish_reason"].isna().sum() > 20
    assert rows.loc[rows["finish_reason"].isna(), "finished_s"].isna().all()


def test_a_stalled_generator_shows_in_the_latency_from_the_intended_arrival(tmp_path: Path) -> None:
    target = inline_target(max_num_seqs=64)

    class Stalled(OpenLoop):
        def take(self):  # type: ignore[no-untyped-def]
            if self._next == 10:
                target._clock.time_s += 2.0  # the generator hangs for two seconds
            return super().take()

    _, rows = drive(target, Stalled(np.arange(0.0, 5.0, 0.1), request_list([2] * 50)), tmp_path)
    late = rows[(rows["intended_s"] >= 1.0) & (rows["intended_s"] < 3.0)]
    assert len(late) == 20
    assert late["lag"].max() == pytest.approx(2.0, abs=0.02)
    assert ((late["first_token_s"] - late["intended_s"]) >= late["lag"]).all()


def test_a_generator_that_hangs_over_the_end_of_the_run_still_sends_all_that_was_measured(tmp_path: Path) -> None:
    target = inline_target(max_num_seqs=64)

    class Stalled(OpenLoop):
        def take(self):  # type: ignore[no-untyped-def]
            if self._next == 0:
                target._clock.time_s += 5.0
            return super().take()

    loop = Stalled(np.arange(0.5, 4.0, 0.5), request_list([2] * 7))
    _, rows = drive(target, loop, tmp_path, Phases(0.0, 2.9))
    assert (rows["phase"] == "measure").sum() == 5
    origin_passed = OpenLoop(np.array([0.5, 1.0]), request_list([2] * 2))
    late = inline_target()
    directory = RunDirectory(tmp_path / "late")
    tables = ClientTables(directory.path, 0.0)
    late._clock.time_s = 3.0  # what came before the run took until after its end
    result = Driver(late, origin_passed, Phases(0.0, 2.0), tables, origin_s=0.0).run()
    assert result.counts == {"length": 2}
    assert min(result.lags) == pytest.approx(2.0)


def test_the_wait_for_the_users_own_cap_is_in_the_latency_and_apart_from_lag(tmp_path: Path) -> None:
    times = np.arange(0.0, 1.0, 0.025)  # 40 a second
    _, rows = drive(
        inline_target(max_num_seqs=64), OpenLoop(times, request_list([20] * 40)), tmp_path, max_concurrency=4
    )
    assert rows["cap_wait"].max() > 0.5
    assert rows["lag"].abs().max() < 1e-9
    ttft = rows["first_token_s"] - rows["intended_s"]
    assert (ttft >= rows["cap_wait"]).all()
    in_flight = [((rows["sent_s"] <= t) & (rows["finished_s"] > t)).sum() for t in rows["sent_s"]]
    assert max(in_flight) == 4


def test_five_hundred_requests_can_be_in_flight(tmp_path: Path) -> None:
    target = inline_target(max_num_seqs=500, max_num_batched_tokens=2048)
    _, rows = drive(target, OpenLoop(np.zeros(500), request_list([50] * 500)), tmp_path)
    assert rows["sent_s"].max() == 0.0
    assert (rows["output_tokens"] == 50).all()


def test_a_refusal_is_a_row_with_its_reason_and_no_latency(tmp_path: Path) -> None:
    target = inline_target(max_queue=2)
    result, rows = drive(target, OpenLoop(np.zeros(10), request_list([5] * 10)), tmp_path)
    refused = rows[rows["finish_reason"] == "refused"]
    assert result.counts == {"length": 2, "refused": 8}
    assert refused["error"].str.contains("max_queue = 2").all()
    assert refused["first_token_s"].isna().all()


def test_a_closed_loop_keeps_its_clients_and_intends_the_moment_after_thinking(tmp_path: Path) -> None:
    think_s = 0.05
    loop = ClosedLoop(3, request_list([4] * 500), think=lambda client: think_s)
    _, rows = drive(inline_target(max_num_seqs=8), loop, tmp_path, Phases(0.0, 5.0), cooldown_limit_s=0.0)
    for _, client in rows.groupby("session_id"):
        client = client.sort_values("intended_s")
        assert client["intended_s"].to_numpy()[1:] == pytest.approx(client["finished_s"].to_numpy()[:-1] + think_s)
    cycle = 4 * STEP_S + think_s
    assert len(rows) == pytest.approx(
        3 * 5.0 / cycle, rel=0.15
    )  # N = X (R + Z); arrivals wait for the step in progress


def test_batches_are_sent_one_after_the_other(tmp_path: Path) -> None:
    requests = request_list([3] * 12)
    batches = [[requests[i] for i in group] for group in ((0, 1), (2,), (3, 4, 5))]
    _, rows = drive(inline_target(max_num_seqs=8), BatchLoop(batches), tmp_path)
    starts = rows.groupby("intended_s").size()
    assert starts.tolist() == [2, 1, 3]
    assert rows["sent_s"].to_numpy() == pytest.approx(rows["intended_s"].to_numpy())


def test_a_target_that_dies_leaves_its_requests_as_failed_rows(tmp_path: Path) -> None:
    class Dying(InlineTarget):
        def next_events(self) -> list[TargetEvent]:
            if self.now() > 0.55:
                raise TargetFailed("killed")
            return super().next_events()

    template = inline_target()
    target = Dying(template._core, template._clock)
    directory = RunDirectory(tmp_path / "run")
    tables = ClientTables(directory.path, 0.0)
    loop = OpenLoop(np.arange(0.0, 5.0, 0.05), request_list([10] * 100))
    target.start_run(None, 0.0)
    with pytest.raises(TargetFailed):
        Driver(target, loop, Phases(0.0, 5.0), tables, origin_s=0.0).run()
    tables.close()
    rows = pq.read_table(directory.complete() / "requests.parquet").to_pandas()
    assert (rows["finish_reason"] == "length").sum() == 5
    assert (rows.loc[rows["finish_reason"] == "failed", "error"] == "killed").all()
    assert (rows["finish_reason"] == "failed").sum() >= 4


@pytest.mark.parametrize("servers", [1, 3])
def test_the_stub_departs_as_the_recursion_says_from_what_it_received(tmp_path: Path, servers: int) -> None:
    rng = np.random.default_rng(2)
    n = 400
    services = rng.exponential(servers * 0.004, n)
    times = np.cumsum(rng.exponential(0.005, n))
    target = StubTarget(iter(services.tolist()), c=servers)
    _, rows = drive(target, OpenLoop(times, request_list([1] * n)), tmp_path)
    received = rows["received_s"].to_numpy()
    expected = lindley(received, services) if servers == 1 else kiefer_wolfowitz(received, services, servers)
    assert rows["wait_first"].to_numpy() == pytest.approx(expected, abs=1e-6)
    assert (rows["done_s"] - rows["received_s"]).to_numpy() == pytest.approx(expected + services, abs=1e-6)
    assert len(rows) == n


def test_a_schedule_with_equal_and_tiny_gaps_is_sent_whole_and_never_early(tmp_path: Path) -> None:
    times = np.sort(np.concatenate([np.linspace(0, 0.5, 800), np.full(200, 0.25)]))
    target = StubTarget(itertools.repeat(0.0))
    result, rows = drive(target, OpenLoop(times, request_list([1] * len(times))), tmp_path)
    assert len(rows) == len(times)
    assert (rows["lag"] >= 0).all()
    assert result.counts == {"length": len(times)}


def test_interrupting_a_run_keeps_its_rows(tmp_path: Path) -> None:
    target = inline_target()

    class Interrupted(OpenLoop):
        def take(self):  # type: ignore[no-untyped-def]
            if self._next == 30:
                raise KeyboardInterrupt
            return super().take()

    directory = RunDirectory(tmp_path / "run")
    tables = ClientTables(directory.path, 0.0)
    target.start_run(None, 0.0)
    loop = Interrupted(np.arange(0.0, 5.0, 0.05), request_list([10] * 100))
    with pytest.raises(KeyboardInterrupt):
        Driver(target, loop, Phases(0.0, 5.0), tables, origin_s=0.0).run()
    tables.close()
    rows = pq.read_table(directory.complete() / "requests.parquet").to_pandas()
    assert len(rows) == 30


def test_a_client_gives_up_after_its_patience_and_the_engine_goes_on_without_it(tmp_path: Path) -> None:
    times = np.arange(0.0, 2.0, 0.05)  # one seat, 0.2 s a request: a backlog that outgrows a patience of 0.5 s
    loop = OpenLoop(times, request_list([20] * 40))
    result, rows = drive(inline_target(), loop, tmp_path, timeout_s=0.5)
    gone = rows[rows["finish_reason"] == "timeout"]
    assert result.counts == {"length": len(rows) - len(gone), "timeout": len(gone)}
    latency = (rows["finished_s"] - rows["intended_s"])[rows["finish_reason"] == "length"]
    assert (latency <= 0.5 + 1e-9).all()
    assert len(gone) > 20
    left = gone["finished_s"] - gone["intended_s"]
    assert ((left >= 0.5 - 1e-9) & (left <= 0.5 + STEP_S + 1e-9)).all()  # aborted by the end of the step in progress
    assert gone["error"].str.contains("0.5 s after its intended arrival").all()
    assert (gone["done_s"] <= gone["finished_s"]).all()


def test_a_timeout_counts_the_wait_for_the_users_own_cap_and_such_a_request_is_never_sent(tmp_path: Path) -> None:
    loop = OpenLoop(np.zeros(6), request_list([20] * 6))  # 0.2 s each, one at a time
    _, rows = drive(inline_target(), loop, tmp_path, max_concurrency=1, timeout_s=0.5)
    rows = rows.sort_values("finished_s", kind="stable")
    assert rows["finish_reason"].tolist() == ["length", "length", *["timeout"] * 4]
    unsent = rows[rows["sent_s"].isna()]
    assert len(unsent) == 3
    assert unsent["cap_wait"].to_numpy() == pytest.approx(0.5)
    assert unsent["finished_s"].to_numpy() == pytest.approx(0.5)


def test_a_client_of_a_closed_loop_that_gave_up_asks_again(tmp_path: Path) -> None:
    loop = ClosedLoop(1, request_list([1000] * 50))  # 10 s each
    _, rows = drive(inline_target(), loop, tmp_path, Phases(0.0, 2.95), cooldown_limit_s=0.0, timeout_s=0.5)
    assert (rows["finish_reason"] == "timeout").sum() == 5
    assert rows["intended_s"].iloc[1:].to_numpy() == pytest.approx(rows["finished_s"].iloc[:-1].to_numpy())
