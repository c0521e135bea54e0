"""The core in virtual time and under threads: stamps, waits, gauge and step rows against independent counts."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections import Counter

import pytest

from engine.core import EngineCore
from engine.executors.base import BatchShape
from engine.executors.emulated import EmulatedExecutor
from engine.executors.placeholder import FIRST_PLACEHOLDER, PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from engine.sampling_params import SamplingParams
from engine.scheduler import QueueFull, RequestRefused
from engine.sequence import Request, Sequence, WaitReason
from tests.engine.shadow import FakeClock, MemoryRecorder, make_request, make_scheduler

BLOCK_SIZE = 4


def _step_time(shape: BatchShape) -> float:
    return 1.0 + 0.125 * shape.decode_seqs + 0.0625 * shape.prefill_tokens


def _core(
    blocks: int = 1000, *, max_queue: int | None = None, clock: FakeClock | None = None, **options: object
) -> tuple[EngineCore, FakeClock, MemoryRecorder]:
    clock = clock or FakeClock(50.0)
    executor = SimulatedExecutor(
        _step_time, PlaceholderTokens(), block_size=BLOCK_SIZE, num_kv_blocks=blocks, max_model_len=500
    )
    scheduler = make_scheduler(blocks, BLOCK_SIZE, 500, **options)
    core = EngineCore(scheduler, executor, max_queue=max_queue, clock=clock)
    recorder = MemoryRecorder()
    core.record_to(recorder)
    return core, clock, recorder


class Simulation:
    """A small event loop in virtual time that keeps its own books: visits of everyone, numbers at every instant."""

    def __init__(self, core: EngineCore, clock: FakeClock, seed: int) -> None:
        self.core = core
        self.clock = clock
        self.draw = random.Random(seed)
        self.sequences: list[Sequence] = []
        self.computed: Counter[tuple[int, str]] = Counter()
        self.visits: dict[str, list[list[float]]] = {}  # request -> [from, until] of each stay in line
        self.changes: list[tuple[float, int, int]] = []  # time, change of (inbox + waiting), change of running

    def arrive(self, prompt: int, max_tokens: int) -> Sequence:
        seq = self.core.add(make_request(f"r{len(self.sequences)}", prompt, max_tokens))
        self.sequences.append(seq)
        self._enter(seq)
        return seq

    def run(self, arrivals: int, rate: float, abort_share: float = 0.0) -> None:
        times = list(itertools.accumulate(self.draw.expovariate(rate) for _ in range(arrivals)))
        due = [(50.0 + at, self.draw.randint(1, 60), self.draw.randint(1, 30)) for at in times]
        while due or self.core.has_work:
            self._let_arrive(due)
            if not self.core.has_work:
                self.clock.now = due[0][0]
                continue
            self.step(due, abort_share)

    def step(self, due: list[tuple[float, int, int]], abort_share: float = 0.0) -> None:
        aborted, batch = self.core.begin_step()
        now = self.clock.now
        for event in aborted:
            self._leave(event.seq, now)
        if batch is None:
            return
        for seq in batch.preempted:
            self._enter(seq, -1)
        for seq in batch.admitted:
            self._start(seq)
        step = self.core.scheduler.num_steps - 1
        for seq, count in zip(batch.seqs, batch.num_tokens, strict=True):
            self.computed[step, seq.request_id] += count
        token_ids, duration = self.core.executor.execute(batch)
        end = now + duration
        while due and due[0][0] < end:  # arrivals in mid-step
            self.clock.now = due[0][0]
            self._let_arrive(due)
        self.clock.now = end
        if self.draw.random() < abort_share:
            self.core.abort(self.draw.choice(self.sequences).request_id)
        for event in self.core.finish_step(batch, token_ids):
            if event.seq.is_finished:
                self._leave(event.seq, end)
        check_blocks_without_reads(self.core)

    def _let_arrive(self, due: list[tuple[float, int, int]]) -> None:
        while due and due[0][0] <= self.clock.now:
            self.arrive(*due.pop(0)[1:])

    def _enter(self, seq: Sequence, running: int = 0) -> None:
        self.visits.setdefault(seq.request_id, []).append([self.clock.now, math.nan])
        self.changes.append((self.clock.now, 1, running))

    def _start(self, seq: Sequence) -> None:
        self.visits[seq.request_id][-1][1] = self.clock.now
        self.changes.append((self.clock.now, -1, 1))

    def _leave(self, seq: Sequence, now: float) -> None:
        waits = math.isnan(self.visits[seq.request_id][-1][1])
        if waits:
            self.visits[seq.request_id][-1][1] = now
        self.changes.append((now, -1, 0) if waits else (now, 0, -1))


def check_blocks_without_reads(core: EngineCore) -> None:
    manager = core.scheduler.block_manager
    held = {block for seq in core.scheduler.running for block in seq.block_table}
    assert manager.num_free_blocks + len(held) == manager.num_blocks


@pytest.fixture(params=["roomy", "tight"])
def simulation(request: pytest.FixtureRequest) -> tuple[Simulation, MemoryRecorder]:
    """A finished run of 150 requests, some aborted; the tight one has a cache that forces preemptions."""
    blocks, rate = {"roomy": (1000, 0.3), "tight": (40, 0.12)}[request.param]
    core, clock, recorder = _core(blocks, max_num_seqs=6, max_num_batched_tokens=40)
    run = Simulation(core, clock, seed=5)
    run.run(150, rate, abort_share=0.1)
    assert (core.scheduler.preemptions > 20) == (request.param == "tight")
    return run, recorder


Run = tuple[Simulation, MemoryRecorder]


def test_stamps_are_in_order(simulation: Run) -> None:
    for seq in simulation[0].sequences:
        stamps = [seq.received_s, seq.drained_s, seq.scheduled_s, seq.emitted_first_s, seq.emitted_last_s, seq.done_s]
        happened = [stamp for stamp in stamps if not math.isnan(stamp)]
        assert happened == sorted(happened)
        if seq.finish_reason == "length":
            assert len(happened) == 6
            assert seq.emitted_last_s == seq.done_s
    reasons = Counter(seq.finish_reason for seq in simulation[0].sequences)
    assert set(reasons) == {"length", "aborted"}
    assert min(reasons.values()) > 5


def test_wait_is_the_sum_over_all_visits_and_a_preempted_request_has_several(simulation: Run) -> None:
    run, _ = simulation
    for seq in run.sequences:
        visits = run.visits[seq.request_id]
        assert len(visits) == 1 + seq.preemptions
        assert seq.wait_total_s == pytest.approx(sum(until - since for since, until in visits))
        if not math.isnan(seq.scheduled_s):
            assert seq.scheduled_s - seq.received_s == pytest.approx(visits[0][1] - visits[0][0])


def test_the_gauge_equals_an_independent_count_at_every_instant(simulation: Run) -> None:
    run, recorder = simulation
    by_time: dict[float, tuple[int, int]] = {}
    waiting = running = 0
    expected = (0, 0)
    for t, change_waiting, change_running in run.changes:
        waiting += change_waiting
        running += change_running
        by_time[t] = (waiting, running)
    gauge = {t: (inbox + waiting, running) for t, inbox, waiting, running in recorder.gauge}
    assert by_time.keys() <= gauge.keys()
    for t in sorted(gauge):  # where only inbox and line change places, the count of before still holds
        expected = by_time.get(t, expected)
        assert gauge[t] == expected, f"at {t}"
    assert (waiting, running) == (0, 0)
    assert [row[0] for row in recorder.gauge] == sorted(row[0] for row in recorder.gauge)


def test_closure_the_area_under_the_gauge_is_the_time_spent(simulation: Run) -> None:
    run, recorder = simulation
    inbox, waiting, running = recorder.areas()
    sojourns = sum(seq.done_s - seq.received_s for seq in run.sequences)
    assert inbox + waiting + running == pytest.approx(sojourns, rel=1e-12)
    assert inbox + waiting == pytest.approx(sum(seq.wait_total_s for seq in run.sequences), rel=1e-12)
    received_only = sum(
        (seq.done_s if math.isnan(seq.drained_s) else seq.drained_s) - seq.received_s for seq in run.sequences
    )
    assert inbox == pytest.approx(received_only, rel=1e-12)


def test_closure_breaks_when_a_row_is_lost_or_the_inbox_is_not_counted(simulation: Run) -> None:
    run, recorder = simulation
    inbox, waiting, running = recorder.areas()
    sojourns = sorted(seq.done_s - seq.received_s for seq in run.sequences)
    assert abs(inbox + waiting + running - sum(sojourns[:-3])) > 0.005 * sum(sojourns)
    assert abs(waiting + running - sum(sojourns)) > 0.005 * sum(sojourns)


def test_step_rows_agree_with_batch_rows_and_with_the_model_of_time(simulation: Run) -> None:
    run, recorder = simulation
    assert [row.step for row in recorder.steps] == list(range(len(recorder.steps)))
    preempted = 0
    for row, batch in zip(recorder.steps, recorder.batches, strict=True):
        assert dict(batch) == {name: n for (step, name), n in run.computed.items() if step == row.step}
        assert row.prefill_seqs + row.decode_seqs == len(batch)
        assert row.prefill_tokens + row.decode_tokens == sum(n for _, n in batch)
        assert row.decode_tokens == row.decode_seqs
        assert row.end_s - row.start_s == pytest.approx(1.0 + 0.125 * row.decode_seqs + 0.0625 * row.prefill_tokens)
        assert row.running >= len(batch)
        preempted += row.preempted
    assert preempted == run.core.scheduler.preemptions == sum(seq.preemptions for seq in run.sequences)
    assert sum(row.drained for row in recorder.steps) <= len(run.sequences)
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(recorder.steps))
    emitted = sum(row.logit_rows for row in recorder.steps)
    assert emitted == sum(seq.num_output_tokens for seq in run.sequences)


def test_every_request_computes_each_token_once_unless_preempted_or_cached() -> None:
    core, clock, _ = _core(1000, max_num_seqs=6, max_num_batched_tokens=40)
    run = Simulation(core, clock, seed=9)
    run.run(60, rate=0.3)
    totals: Counter[str] = Counter()
    for (_, name), count in run.computed.items():
        totals[name] += count
    for seq in run.sequences:
        assert totals[seq.request_id] == seq.num_tokens - 1 - seq.num_cached_tokens


def test_batch_shape_by_hand() -> None:
    core, clock, recorder = _core(max_num_seqs=4, max_num_batched_tokens=10)
    run = Simulation(core, clock, seed=1)
    run.arrive(3, 5)
    run.step([])
    run.arrive(15, 5)
    for _ in range(3):
        run.step([])
    shapes = [BatchShape(*row[6:13]) for row in recorder.steps]
    assert shapes == [
        BatchShape(1, 0, 3, 0, 0, 3 * 1.5, 1),
        BatchShape(1, 1, 9, 1, 4, 9 * 4.5, 1),
        BatchShape(1, 1, 6, 1, 5, 6 * (9 + 3.0), 2),
        BatchShape(0, 2, 0, 2, 6 + 16, 0.0, 2),
    ]


def test_an_abort_in_every_phase_frees_everything_and_ends_the_right_wait() -> None:
    core, clock, _ = _core(max_num_seqs=1)
    run = Simulation(core, clock, seed=1)
    running = run.arrive(5, 50)
    run.step([])
    waiting = run.arrive(5, 5)
    run.step([])
    clock.advance(10.0)
    received = run.arrive(5, 5)
    clock.advance(2.0)
    for seq in (running, waiting, received):
        core.abort(seq.request_id)
        core.abort(seq.request_id)  # twice is once
    events, batch = core.begin_step()
    assert batch is None
    assert [(event.seq, event.token_id) for event in events] == [(running, None), (waiting, None), (received, None)]
    assert {seq.finish_reason for seq in (running, waiting, received)} == {"aborted"}
    assert (running.wait_total_s, received.wait_total_s) == (0.0, 2.0)
    assert waiting.wait_total_s == clock.now - waiting.received_s
    assert core.num_live == 0
    assert not core.has_work
    assert core.scheduler.block_manager.num_used_blocks == 0


def test_finish_early_ends_a_request_wherever_it_is() -> None:
    core, clock, recorder = _core(max_num_seqs=1)
    run = Simulation(core, clock, seed=1)
    running = run.arrive(5, 50)
    run.step([])
    waiting = run.arrive(5, 5)
    run.step([])
    received = run.arrive(5, 5)
    clock.advance(3.0)
    for seq in (running, waiting, received):
        core.finish_early(seq, "stop")
    assert [seq.finish_reason for seq in (running, waiting, received)] == ["stop"] * 3
    assert (running.wait_total_s, received.wait_total_s) == (0.0, 3.0)
    assert waiting.wait_total_s == clock.now - waiting.received_s
    assert (core.num_live, core.has_work, recorder.gauge[-1][1:]) == (0, False, (0, 0, 0))


def test_the_bound_on_the_line_counts_inbox_and_line_and_says_so() -> None:
    core, clock, _ = _core(max_queue=3, max_num_seqs=1)
    run = Simulation(core, clock, seed=1)
    run.arrive(2, 10)
    run.step([])
    for _ in range(2):
        run.arrive(2, 10)
    run.step([])
    run.arrive(2, 10)
    with pytest.raises(QueueFull, match=r"'late' refused: 3 requests wait already \(max_queue = 3\)"):
        core.add(make_request("late", 2, 2))
    assert core.num_live == 4
    core.abort("r3")
    core.begin_step()
    core.add(make_request("late", 2, 2))


def test_wait_reasons_reach_the_sequence() -> None:
    core, clock, _ = _core(max_num_seqs=1)
    run = Simulation(core, clock, seed=1)
    first, second = run.arrive(2, 3), run.arrive(2, 3)
    while core.has_work:
        run.step([])
    assert (first.wait_reason, second.wait_reason) == (None, WaitReason.SEATS)
    assert (first.visible_step, second.visible_step) == (0, 0)
    assert second.wait_total_s == first.done_s - first.received_s


def test_placeholders_are_unique_and_the_end_token_comes_at_the_length_that_is_listed() -> None:
    lengths = {"r0": 3, "r1": 1, "r2": 7}
    clock = FakeClock()
    tokens = PlaceholderTokens(lengths, eos_token_id=99)
    executor = SimulatedExecutor(lambda _: 1.0, tokens, block_size=4, num_kv_blocks=100, max_model_len=100)
    scheduler = make_scheduler(100, 4, 100)
    core = EngineCore(scheduler, executor, eos_token_ids=frozenset([99]), clock=clock)
    sequences = [core.add(make_request(f"r{i}", 5, 10)) for i in range(4)]
    while core.has_work:
        core.step()
    assert [seq.num_output_tokens for seq in sequences] == [3, 1, 7, 10]
    assert [seq.finish_reason for seq in sequences] == ["stop", "stop", "stop", "length"]
    placeholders = [token for seq in sequences for token in seq.token_ids[5:] if token != 99]
    assert len(set(placeholders)) == len(placeholders) == 2 + 0 + 6 + 10
    assert min(placeholders) >= FIRST_PLACEHOLDER


def test_a_listed_output_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'b': 0.*at least 1"):
        PlaceholderTokens({"a": 1, "b": 0})


def test_four_threads_add_while_the_loop_steps_and_everybody_completes() -> None:
    executor = EmulatedExecutor(lambda _: 2e-5, PlaceholderTokens(), block_size=4, num_kv_blocks=200, max_model_len=100)
    core = EngineCore(make_scheduler(200, 4, 100, max_num_seqs=8), executor)
    recorder = MemoryRecorder()
    core.record_to(recorder)
    per_thread = 150
    added: list[list[Sequence]] = [[] for _ in range(4)]
    refused = Counter[int]()

    def client(index: int) -> None:
        draw = random.Random(index)
        for n in range(per_thread):
            name = f"{index}/{n}"
            added[index].append(core.add(make_request(name, draw.randint(1, 20), draw.randint(1, 6))))
            if n % 10 == 0:
                core.abort(name)
            if n % 10 == 5:
                try:
                    core.add(make_request(name, 1, 1))  # live or just over: refused or served, never mixed up
                except RequestRefused:
                    refused[index] += 1

    threads = [threading.Thread(target=client, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    ended: Counter[str] = Counter()
    deadline = time.perf_counter() + 60
    while any(thread.is_alive() for thread in threads) or core.has_work:
        assert time.perf_counter() < deadline, "stall"
        if core.wait_for_work(timeout=0.01):
            for event in core.step():
                ended[event.seq.request_id] += event.seq.is_finished
    sequences = [seq for one in added for seq in one]
    assert all(seq.is_finished for seq in sequences)
    assert sum(ended.values()) == 4 * per_thread + (4 * per_thread // 10 - sum(refused.values()))
    assert (core.num_live, core.scheduler.block_manager.num_used_blocks) == (0, 0)
    for seq in sequences:
        stamps = [seq.received_s, seq.drained_s, seq.scheduled_s, seq.emitted_first_s, seq.emitted_last_s, seq.done_s]
        happened = [stamp for stamp in stamps if not math.isnan(stamp)]
        assert happened == sorted(happened)
        assert seq.wait_total_s >= 0
    times = [row[0] for row in recorder.gauge]
    assert times == sorted(times)
    assert recorder.gauge[-1][1:] == (0, 0, 0)
    assert max(running for *_, running in recorder.gauge) == 8


def test_wait_for_work_sleeps_until_an_arrival_and_counts_it_as_idle() -> None:
    executor = EmulatedExecutor(lambda _: 0.0, PlaceholderTokens(), block_size=4, num_kv_blocks=10, max_model_len=30)
    core = EngineCore(make_scheduler(10, 4, 30), executor)
    recorder = MemoryRecorder()
    core.record_to(recorder)
    assert not core.wait_for_work(timeout=0.0)
    timer = threading.Timer(0.05, lambda: core.add(make_request("a", 3, 1)))
    began = time.perf_counter()
    timer.start()
    while not core.wait_for_work(timeout=30.0):
        pass
    waited = time.perf_counter() - began
    core.step()
    assert 0.04 < recorder.steps[0].idle_s <= waited + 0.01
    assert not core.has_work


def test_a_new_recorder_starts_from_the_numbers_of_that_moment() -> None:
    core, clock, first = _core(max_num_seqs=1)
    run = Simulation(core, clock, seed=1)
    run.arrive(2, 5)
    run.arrive(2, 5)
    run.step([])
    clock.advance(1.0)
    second = MemoryRecorder()
    core.record_to(second)
    assert first.gauge[-1] == second.gauge[0] == (clock.now, 0, 1, 1)
    run.step([])
    core.record_to(None)
    run.step([])
    assert (len(first.steps), len(second.steps)) == (1, 1)
    assert second.gauge[-1][1:] == (0, 1, 1)


def test_what_the_core_cannot_honour_is_refused_not_ignored() -> None:
    core, _, _ = _core()
    for params, message in (
        (SamplingParams(n=3), "n = 3; the core serves one sample a request"),
        (SamplingParams(logprobs=0), "logprobs = 0; SimulatedExecutor has no probabilities"),
    ):
        with pytest.raises(RequestRefused, match=message):
            core.add(Request("r", [1, 2], params))
    assert core.counters()["refused"] == 2
    assert core.num_live == 0


def test_ends_that_leave_no_token_before_min_tokens_are_refused() -> None:
    """A vocabulary of 8: all but one id may be an end, or all where none is barred."""
    core, _, _ = _core()
    core.executor.vocab_size = 8
    core.eos_token_ids = frozenset([0, 1])
    params = SamplingParams(min_tokens=1, ignore_eos=True, stop_token_ids=tuple(range(2, 8)))
    with pytest.raises(RequestRefused, match="min_tokens = 1, but each of the 8 tokens ends an output"):
        core.add(Request("none left", [1, 2], params))
    for name, least, stops in (("one left", 1, range(2, 7)), ("none barred", 0, range(8)), ("others", 1, range(7, 99))):
        core.add(Request(name, [1, 2], SamplingParams(min_tokens=least, stop_token_ids=tuple(stops))))
    assert core.num_live == 3
