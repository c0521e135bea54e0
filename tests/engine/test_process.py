"""The engine in a process of its own, with the emulated executor: no model, but real processes, sockets and clocks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from engine.config import EngineConfig
from engine.outputs import RequestStats
from engine.process import EngineProcess, EngineProcessDied, decode_request, encode_request
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from engine.tables import read_stream, stream_to_parquet

EMULATED = EngineConfig(executor="emulated", step_time={"base_s": 0.002}, max_num_seqs=4, num_kv_blocks=64)
WAIT_S = 30.0


@pytest.fixture
def process() -> Iterator[EngineProcess]:
    with EngineProcess(EMULATED) as process:
        yield process


def request(name: str, prompt: int = 8, output: int = 5) -> Request:
    return Request(name, list(range(1, prompt + 1)), SamplingParams(0.0, max_tokens=output, ignore_eos=True))


def collect(process: EngineProcess, wanted: set[str]) -> dict[str, list[tuple[object, ...]]]:
    """Every event of every request until all of ``wanted`` are over."""
    events: dict[str, list[tuple[object, ...]]] = {}
    limit = time.monotonic() + WAIT_S
    while wanted and time.monotonic() < limit:
        process.readable.poll(1.0)
        for message in process.poll():
            if message[0] == "refused":
                events.setdefault(message[1], []).append(message)
                wanted.discard(message[1])
                continue
            for event in message[1]:
                events.setdefault(event[0], []).append(event)
                if event[2] is not None:
                    wanted.discard(event[0])
    assert not wanted, f"no end of {wanted} within {WAIT_S} s"
    return events


def test_a_request_survives_the_journey_unchanged() -> None:
    params = SamplingParams(0.7, 5, 0.9, 0.1, 3, 7, 2, True, (), (4,), 1.1, 0.2, -0.3)
    sent = Request("r", [1, 2, 70_000], params, priority=2, predicted_output_tokens=9, cache_salt="s")
    assert decode_request(encode_request(sent)) == sent


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("logprobs", SamplingParams(logprobs=0)),
        ("n", SamplingParams(n=2)),
        ("stop", SamplingParams(stop=("x",))),
    ],
)
def test_what_an_engine_process_does_not_send_is_refused_on_the_way_in(name: str, params: SamplingParams) -> None:
    with pytest.raises(ValueError, match=f"request 'r' has {name} = .*use LLM"):
        encode_request(Request("r", [1], params))


def test_every_token_arrives_once_and_the_stamps_are_in_order(process: EngineProcess) -> None:
    before = time.perf_counter()
    for i in range(20):
        process.add_request(request(f"r{i}", output=i + 1))
    events = collect(process, {f"r{i}" for i in range(20)})
    for i in range(20):
        tokens = [event[1] for event in events[f"r{i}"]]
        assert len(tokens) == i + 1
        assert len(set(tokens)) == i + 1
        assert events[f"r{i}"][-1][2] == "length"
        stats = RequestStats(*events[f"r{i}"][-1][3])  # type: ignore[misc]
        stamps = [before, *stats[:5]]
        assert stamps == sorted(stamps)
        assert stats.wait_total == pytest.approx(stats.scheduled_s - stats.received_s)


def test_what_can_never_run_is_refused_with_the_numbers_and_others_go_on(process: EngineProcess) -> None:
    process.add_request(request("too-long", prompt=2000))
    process.add_request(request("short"))
    events = collect(process, {"too-long", "short"})
    assert "KV blocks" in str(events["too-long"][0][2])
    assert "64" in str(events["too-long"][0][2])
    assert events["short"][-1][2] == "length"


def test_an_abort_in_mid_flight_ends_the_request_and_frees_its_seat(process: EngineProcess) -> None:
    process.add_request(request("endless", output=800))
    process.readable.poll(WAIT_S)
    process.abort("endless")
    assert collect(process, {"endless"})["endless"][-1][2] == "aborted"
    for i in range(8):
        process.add_request(request(f"later{i}"))
    collect(process, {f"later{i}" for i in range(8)})


def test_tables_of_a_run_hold_every_step_and_every_computed_token(process: EngineProcess, tmp_path) -> None:  # type: ignore[no-untyped-def]
    process.start_run(tmp_path, time.perf_counter())
    for i in range(6):
        process.add_request(request(f"r{i}", prompt=10, output=4))
    collect(process, {f"r{i}" for i in range(6)})
    counted = process.finish_run()
    steps = pq.read_table(stream_to_parquet(tmp_path / "steps.arrows")).to_pandas()
    batch = pq.read_table(stream_to_parquet(tmp_path / "batch.arrows")).to_pandas()
    gauge = pq.read_table(stream_to_parquet(tmp_path / "gauge.arrows")).to_pandas()
    assert counted["steps"] == len(steps)
    assert (batch.groupby("request_id")["num_tokens"].sum() == 10 + 4 - 1).all()
    assert (steps["end_s"] > steps["start_s"]).all()
    assert (steps["start_s"].to_numpy()[1:] >= steps["end_s"].to_numpy()[:-1]).all()
    assert gauge.iloc[-1][["inbox", "waiting", "running"]].sum() == 0
    assert gauge[["inbox", "waiting", "running"]].sum(axis=1).max() <= 6


def test_a_killed_engine_is_reported_and_its_rows_can_be_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    process = EngineProcess(EMULATED)
    process.start_run(tmp_path, time.perf_counter())
    process.add_request(request("endless", output=1000))
    deadline = time.perf_counter() + WAIT_S
    while read_stream(tmp_path / "steps.arrows").num_rows == 0 and time.perf_counter() < deadline:
        process.readable.poll(0.05)  # rows are flushed about once a second
        list(process.poll())  # who does not read stops the engine
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineProcessDied, match="-9"):
        collect(process, {"endless"})
    process.close()
    assert read_stream(tmp_path / "steps.arrows").num_rows > 0


def test_a_bad_option_is_an_error_of_the_caller_not_a_traceback() -> None:
    with pytest.raises(ValueError, match="base_s"):
        EngineProcess(EngineConfig(executor="emulated", step_time={"base": 1.0}))


def test_both_clocks_are_one(process: EngineProcess) -> None:
    offset = process.clock_offset()
    assert offset["low_s"] <= 0.0 <= offset["high_s"]
