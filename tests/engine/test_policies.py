"""Who goes first: every policy against a brute-force sort, with ageing, ties, and the batch that nobody may join."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import CHOICES, EngineConfig
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from engine.policies import make_policy
from engine.sequence import Request, Sequence
from tests.engine.shadow import FakeClock, make_request, make_scheduler

KeyOf = Callable[[Sequence, float], float]


def _value(policy: str, seq: Sequence) -> float:
    """What the policy orders by, from its description."""
    if policy == "priority":
        return seq.request.priority
    if policy == "sjf":
        return len(seq.request.prompt_token_ids) + (seq.request.predicted_output_tokens or 0)
    return 0


def _core(policy: str, ageing: float, seats: int = 1) -> tuple[EngineCore, FakeClock]:
    clock = FakeClock(1000.0)
    scheduler = make_scheduler(10_000, 4, max_num_seqs=seats, max_num_batched_tokens=1000, policy=policy, ageing=ageing)
    executor = SimulatedExecutor(
        lambda shape: 1.0, PlaceholderTokens(), block_size=4, num_kv_blocks=10_000, max_model_len=1000
    )
    return EngineCore(scheduler, executor, clock=clock), clock


job = st.tuples(
    st.integers(1, 12),  # prompt
    st.sampled_from([None, 0, 5, 20]),  # predicted output
    st.integers(-2, 2),  # priority
    st.sampled_from([0.0, 0.0, 1.0, 2.5]),  # pause before it arrives
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    policy=st.sampled_from(CHOICES["policy"]),
    ageing=st.sampled_from([0.0, 0.5, 3.0]),
    jobs=st.lists(job, min_size=2, max_size=14),
)
def test_one_seat_serves_in_the_order_of_a_sort_over_those_present(
    policy: str, ageing: float, jobs: list[tuple[int, int | None, int, float]]
) -> None:
    """The brute force sorts by value - ageing * (now - received) whenever the seat is free, with the clock read anew."""
    core, clock = _core(policy, ageing)
    waiting: list[Sequence] = []
    arrivals = []
    at = clock.now
    for index, (prompt, predicted, priority, pause) in enumerate(jobs):
        at += pause
        arrivals.append(
            (at, Request(f"r{index}", list(range(prompt)), make_request("x", 1, 2).params, priority, predicted))
        )
    while arrivals or core.has_work:
        while arrivals and arrivals[0][0] <= clock.now:
            waiting.append(core.add(arrivals.pop(0)[1]))
        seat_is_free = core.scheduler.num_running == 0
        _, batch = core.begin_step()
        if batch is None:
            clock.now = arrivals[0][0]
            continue
        if seat_is_free:
            aged = {
                seq.request_id: _value(policy, seq) - _ageing(policy, ageing) * (clock.now - seq.received_s)
                for seq in waiting
            }
            best = min(
                waiting, key=lambda seq: aged[seq.request_id]
            )  # the first of equals: they stand in order of receipt
            assert batch.admitted == [best]
            waiting.remove(best)
        else:
            assert batch.admitted == []
        token_ids, duration = core.executor.execute(batch)
        clock.advance(duration)
        core.finish_step(batch, token_ids)


def _ageing(policy: str, ageing: float) -> float:
    return ageing if policy in ("priority", "sjf") else 0.0


@pytest.mark.parametrize("policy", CHOICES["policy"])
def test_nobody_overtakes_within_equal_keys(policy: str) -> None:
    core, clock = _core(policy, ageing=0.0, seats=3)
    order: list[int] = []
    sequences = {id(core.add(make_request(f"{i}", 3, 1 + i % 4))): i for i in range(30)}
    while core.has_work:
        _, batch = core.begin_step()
        assert batch is not None
        order += [sequences[id(seq)] for seq in batch.admitted]
        clock.advance(1.0)
        core.finish_step(batch, core.executor.execute(batch)[0])
    assert order == list(range(30))


def test_lower_priority_numbers_go_first() -> None:
    core, _ = _core("priority", 0.0)
    for priority in (3, -1, 2, -5):
        core.add(make_request(f"p{priority}", 2, 1, priority=priority))
    assert [event.seq.request.priority for _ in range(4) for event in core.step()] == [-5, -1, 2, 3]


@pytest.mark.parametrize("ageing", [0.0, 1.0])
@pytest.mark.parametrize("policy", ["priority", "sjf"])
def test_ageing_ends_starvation(policy: str, ageing: float) -> None:
    """One hard case against an endless stream of easy ones; with one level a second it is 9 behind, so 9 s at most."""
    core, clock = _core(policy, ageing)
    hard = core.add(make_request("hard", 11, 1, priority=9))
    started: list[Sequence] = []
    for index in range(30):
        core.add(make_request(f"easy {index}", 2, 1, priority=0))
        _, batch = core.begin_step()
        assert batch is not None
        started += batch.admitted
        clock.advance(1.0)
        core.finish_step(batch, core.executor.execute(batch)[0])
    assert (hard in started) == (ageing > 0)
    if ageing:
        assert started.index(hard) == 9
        assert hard.wait_total_s == 9.0


def test_static_batch_admits_nobody_until_the_batch_has_ended() -> None:
    core, clock = _core("static_batch", 0.0, seats=4)
    draw = random.Random(3)
    batches: list[int] = []
    index = 0
    for _ in range(200):
        for _ in range(draw.randint(0, 1)):
            core.add(make_request(f"r{index}", draw.randint(1, 9), draw.randint(1, 12)))
            index += 1
        running_before = core.scheduler.num_running
        waiting_before = core.scheduler.num_waiting + len(core._inbox)
        _, batch = core.begin_step()
        if batch is None:
            continue
        if running_before:
            assert batch.admitted == []
        else:
            assert len(batch.admitted) == min(4, waiting_before)
            batches.append(len(batch.admitted))
        clock.advance(1.0)
        core.finish_step(batch, core.executor.execute(batch)[0])
    assert len(batches) > 10
    assert set(batches) >= {1, 4}


@pytest.mark.parametrize("policy", CHOICES["policy"])
def test_a_key_needs_no_clock_where_nothing_ages(policy: str) -> None:
    """The scheduler alone, as a simulation or a test drives it, has no stamps."""
    scheduler = make_scheduler(100, 4, max_num_seqs=1, policy=policy)
    for name, prompt, priority in (("a", 5, 2), ("b", 9, 1), ("c", 2, 3), ("d", 7, 0)):
        scheduler.add(Sequence.from_request(make_request(name, prompt, 1, priority=priority)))
    order = ""
    while scheduler.has_work:
        batch = scheduler.schedule()
        order += batch.seqs[0].request_id
        scheduler.update(batch, [1])
    assert order == {"priority": "dbac", "sjf": "cadb"}.get(policy, "abcd")


def test_every_policy_of_the_config_can_be_made() -> None:
    names = [type(make_policy(EngineConfig(policy=policy))).__name__ for policy in CHOICES["policy"]]
    assert names == ["FCFS", "PriorityPolicy", "ShortestJobFirst", "PrefillFirst", "StaticBatch"]
