"""The scheduler without a model: budgets, seats, admission, preemption and refusals, with hand-counted numbers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engine.config import CHOICES
from engine.executors.base import ScheduledBatch
from engine.scheduler import RequestRefused, Scheduler
from engine.sequence import Sequence, WaitReason
from tests.engine.shadow import checked_step, make_request, make_scheduler, make_shadow_core, run_to_end


def _add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 100, **options: int) -> Sequence:
    seq = Sequence.from_request(make_request(name, prompt, max_tokens, **options))
    seq.received_s = 0.0
    scheduler.add(seq)
    return seq


def _step(scheduler: Scheduler) -> ScheduledBatch:
    batch = scheduler.schedule()
    scheduler.update(batch, [9_000_000 + scheduler.num_steps] * sum(batch.needs_token))
    return batch


def _plan(batch: ScheduledBatch) -> dict[str, int]:
    return dict(zip([seq.request_id for seq in batch.seqs], batch.num_tokens, strict=True))


def test_a_prompt_is_cut_into_chunks_by_the_budget_and_decodes_go_first() -> None:
    scheduler = make_scheduler(100, 4, max_num_seqs=4, max_num_batched_tokens=10)
    _add(scheduler, "a", 3)
    assert _plan(_step(scheduler)) == {"a": 3}
    _add(scheduler, "b", 25)
    _add(scheduler, "c", 4)
    assert _plan(_step(scheduler)) == {"a": 1, "b": 9}
    assert _plan(_step(scheduler)) == {"a": 1, "b": 9}
    assert _plan(_step(scheduler)) == {"a": 1, "b": 7, "c": 2}
    assert _plan(_step(scheduler)) == {"a": 1, "b": 1, "c": 2}
    assert _plan(_step(scheduler)) == {"a": 1, "b": 1, "c": 1}


def test_prefill_first_gives_prompts_the_budget_but_leaves_every_decode_its_token() -> None:
    scheduler = make_scheduler(100, 4, max_num_seqs=4, max_num_batched_tokens=10, policy="prefill_first")
    _add(scheduler, "a", 3)
    _step(scheduler)
    _add(scheduler, "b", 12)
    _add(scheduler, "c", 8)
    assert list(_plan(_step(scheduler)).items()) == [("b", 9), ("a", 1)]
    # the newcomer goes before the chunk that is under way, which goes before the decode
    assert list(_plan(_step(scheduler)).items()) == [("c", 8), ("b", 1), ("a", 1)]
    assert _plan(_step(scheduler)) == {"a": 1, "c": 1, "b": 2}


def test_a_token_is_wanted_exactly_when_the_gap_closes() -> None:
    scheduler = make_scheduler(100, 4, max_num_seqs=4, max_num_batched_tokens=5)
    _add(scheduler, "a", 11)
    assert [_step(scheduler).needs_token for _ in range(4)] == [[False], [False], [True], [True]]


@pytest.mark.parametrize("policy", CHOICES["policy"])
def test_seats_and_budget_are_never_exceeded_and_are_used(policy: str) -> None:
    scheduler = make_scheduler(1000, 4, max_num_seqs=3, max_num_batched_tokens=7, policy=policy)
    draw = random.Random(1)
    for index in range(40):
        _add(scheduler, f"r{index}", draw.randint(1, 20), draw.randint(1, 10))
    while scheduler.has_work:
        batch = _step(scheduler)
        assert sum(batch.num_tokens) <= 7
        assert scheduler.num_running <= 3
        if policy not in ("static_batch", "prefill_first") and scheduler.num_waiting:
            assert sum(batch.num_tokens) == 7 or len(batch.seqs) == 3
    assert scheduler.preemptions == 0


def test_the_watermark_leaves_room_to_grow_but_not_for_the_first_request() -> None:
    core = make_shadow_core(20, 1, vocabulary=10**9, max_num_seqs=8, watermark=0.25)
    core.add(make_request("a", 9, 2))
    core.add(make_request("b", 6, 2))
    core.add(make_request("c", 1, 2))
    checked_step(core)
    assert [seq.request_id for seq in core.scheduler.running] == ["a", "b"]  # five of 20 stay free
    run_to_end(core, 20)
    core.add(make_request("whole cache", 19, 2))
    assert run_to_end(core, 20) == 2


def test_nobody_overtakes_a_head_that_waits_for_blocks() -> None:
    core = make_shadow_core(10, 1, vocabulary=10**9, max_num_seqs=8)
    core.add(make_request("a", 4, 3))
    checked_step(core)
    core.add(make_request("big", 7, 2))
    core.add(make_request("small", 1, 2))
    checked_step(core)
    assert [seq.request_id for seq in core.scheduler.running] == ["a"]
    order = []
    while core.has_work:
        order += [event.seq.request_id for event in core.step() if event.seq.is_finished]
    assert order == ["a", "big", "small"]


def test_the_last_in_order_gives_way_and_comes_back_before_those_behind_it() -> None:
    scheduler = make_scheduler(6, 2, max_num_seqs=3)
    first, second = _add(scheduler, "first", 6, 5), _add(scheduler, "second", 6, 3)
    _add(scheduler, "third", 2, 1)
    _step(scheduler)  # all six blocks are taken
    batch = _step(scheduler)
    assert batch.preempted == [second]
    assert _plan(batch) == {"first": 1}
    assert (second.block_table, second.num_computed_tokens, second.num_tokens) == ([], 0, 7)
    assert (second.preemptions, second.wait_reason) == (1, WaitReason.KV)
    order = []
    while scheduler.has_work:
        batch = _step(scheduler)
        order += [seq.request_id for seq in batch.admitted]
    assert order == ["second", "third"]
    assert (first.num_output_tokens, second.num_output_tokens, scheduler.preemptions) == (5, 3, 1)


def test_a_preempted_request_computes_again_what_is_no_longer_cached() -> None:
    for caching, tokens_again in ((True, 7 - 6), (False, 7)):
        scheduler = make_scheduler(7, 2, max_num_seqs=2, enable_prefix_caching=caching)
        _add(scheduler, "first", 6, 3)
        second = _add(scheduler, "second", 6, 4)
        _step(scheduler)
        assert _step(scheduler).preempted == [second]
        while scheduler.has_work:
            batch = _step(scheduler)
            if batch.admitted:
                assert _plan(batch)["second"] == tokens_again
        assert second.num_cached_tokens == 0  # what the client is told: cached when it first started


def test_wait_reasons_name_what_kept_the_head_waiting() -> None:
    def reason(prompt: int, blocks: int, seats: int, budget: int, late: bool = True) -> WaitReason | None:
        scheduler = make_scheduler(blocks, 1, max_num_seqs=seats, max_num_batched_tokens=budget)
        _add(scheduler, "first", 6, 4)
        if late:
            seq = _add(scheduler, "late", prompt, 1)
        _step(scheduler)
        if not late:
            seq = _add(scheduler, "late", prompt, 1)
        while scheduler.has_work:
            _step(scheduler)
        return seq.wait_reason

    assert reason(6, blocks=100, seats=1, budget=100) is WaitReason.SEATS
    assert reason(6, blocks=100, seats=4, budget=6) is WaitReason.BUDGET
    assert reason(6, blocks=11, seats=4, budget=100) is WaitReason.KV
    assert reason(6, blocks=100, seats=4, budget=100) is None
    assert reason(6, blocks=100, seats=4, budget=100, late=False) is None


def test_equal_prompts_in_one_step_share_their_blocks() -> None:
    core = make_shadow_core(100, 2, vocabulary=10**9, max_num_seqs=4)
    sequences = [core.add(make_request(f"r{i}", [5, 6, 7, 8, 9], 2)) for i in range(4)]
    checked_step(core)
    assert core.scheduler.block_manager.num_used_blocks == 2 + 4
    assert [seq.num_cached_tokens for seq in sequences] == [0, 4, 4, 4]
    run_to_end(core, 10)


@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_what_fits_the_cache_to_the_last_token_runs_and_one_more_is_refused(size: int) -> None:
    blocks = 3
    room = blocks * size + 1  # the last token's keys and values are never written
    for prompt in range(1, room):
        core = make_shadow_core(blocks, size, vocabulary=10**9)
        seq = core.add(make_request("fits", prompt, room - prompt))
        run_to_end(core, room + 1)
        assert (seq.num_tokens, seq.preemptions) == (room, 0)
        with pytest.raises(
            RequestRefused, match=rf"may need {blocks + 1} KV blocks .* the cache has {blocks}: lower max"
        ):
            core.add(make_request("does not", prompt, room - prompt + 1))


def test_aborted_requests_do_not_pile_up_behind_a_blocked_head() -> None:
    scheduler = make_scheduler(10, 1, max_num_seqs=1)
    _add(scheduler, "running", 5, 5)
    _step(scheduler)
    waiting = [_add(scheduler, f"w{index}", 1, 1) for index in range(3)]
    for index in range(1000):
        assert scheduler.remove(_add(scheduler, f"gone {index}", 2, 2))
    assert scheduler.num_waiting == 3
    assert len(scheduler._heap) < 50
    order = []
    while scheduler.has_work:
        order += _step(scheduler).admitted
    assert order == waiting


def test_the_scheduler_loads_neither_torch_nor_transformers() -> None:
    import subprocess
    import sys

    code = "import sys, engine.core, engine.executors.emulated; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class CountedKey(float):
    """A policy's key that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        CountedKey.comparisons += 1
        return float(self) < other

    def __eq__(self, other: object) -> bool:
        CountedKey.comparisons += 1
        return float(self) == other

    __hash__ = float.__hash__


def test_among_ten_thousand_waiting_a_request_costs_comparisons_by_the_logarithm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To be added, admitted, ended or taken out: four comparisons of keys a level of a heap of 2**14 at most."""
    scheduler = make_scheduler(40_000, 1, max_num_seqs=8, max_num_batched_tokens=100)
    draw = random.Random(2)
    monkeypatch.setattr(scheduler.policy, "key", lambda seq: CountedKey(draw.random()))
    waiting = [_add(scheduler, f"w{index}", 1, 1) for index in range(10_000)]

    def cost_of(act: Callable[[], object]) -> int:
        before = CountedKey.comparisons
        act()
        return CountedKey.comparisons - before

    per_request = 4 * 14
    assert cost_of(lambda: _add(scheduler, "late", 1, 1)) <= per_request
    assert cost_of(lambda: _step(scheduler)) <= 8 * 2 * per_request  # out of the heap and into order
    assert scheduler.num_waiting == 9993
    for seq in waiting[5000:5100]:
        if seq in scheduler._waiting:
            assert cost_of(lambda seq=seq: scheduler.remove(seq)) == 0  # type: ignore[misc]
