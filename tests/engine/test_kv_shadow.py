"""Random schedules against a shadow of the KV cache: no wrong read, leak or stall, whatever happens when.

A seed stands for a configuration (tiny blocks and caches, every policy) and a list of events: arrivals with shared
prefixes and salts, steps, aborts in every phase. The shadow checks every read; outputs are held against the tokens
computed from their definition, waits and the gauge against a second count.
"""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_manager import BlockManager
from engine.config import CHOICES
from engine.core import EngineCore
from engine.scheduler import QueueFull, RequestRefused
from engine.sequence import Request, Sequence
from tests.engine.shadow import (
    FakeClock,
    MemoryRecorder,
    WrongRead,
    check_batch,
    check_blocks,
    expected_output,
    make_request,
    make_shadow_core,
    run_to_end,
)

MAX_MODEL_LEN = 24
VOCABULARY = 8
PREFIXES = ((1, 2, 3, 1, 2, 3, 1, 2), (1, 2, 3, 3, 3, 3, 3, 3), (2, 1, 2, 1, 2, 1, 2, 1))
SALTS = (None, "a")


class FourBitHash(int):
    """A token id whose hash has four bits: different blocks collide all the time."""

    def __hash__(self) -> int:
        return int(self) & 15


class OneHash(int):
    """A token id that collides with every other."""

    def __hash__(self) -> int:
        return 0


class BlurredToken(int):
    """A token id that lies about equality, as a colliding hash does where tokens are not compared."""

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) % 2 == int(other) % 2


TOKEN_TYPES = (int, FourBitHash, OneHash)


def random_options(random: Random) -> dict[str, Any]:
    """A small engine: few blocks of few tokens, few seats, any policy."""
    block_size = random.randint(1, 4)
    seats = random.randint(1, 5)
    return {
        "block_size": block_size,
        "num_kv_blocks": random.randint(2, 36 // block_size),
        "seats": seats,
        "budget": seats + random.choice((0, 1, 3, 9, 30)),
        "policy": random.choice(CHOICES["policy"]),
        "ageing": random.choice((0.0, 0.7)),
        "prefix_caching": random.random() < 0.7,
        "watermark": random.choice((0.0, 0.0, 0.3)),
        "max_queue": random.choice((None, None, 3)),
        "token_type": random.choice(TOKEN_TYPES),
    }


def random_events(random: Random, count: int) -> list[tuple[Any, ...]]:
    """Arrivals with shared prefixes and salts, steps, aborts in every phase, pauses, a cache forgotten."""
    kinds = ("add", "step", "step and abort", "abort", "finish_early", "sleep", "clear_cache")
    weights = (30, 55, 4, 4, 2, 4, 1)
    events: list[tuple[Any, ...]] = []
    for kind in random.choices(kinds, weights, k=count):
        who = random.randrange(max(1, count // 3))
        if kind == "add":
            prefix = random.choice(PREFIXES)[: random.randint(0, 8)]
            own = tuple(random.randint(1, 2) for _ in range(random.randint(0, 7)))
            salt = SALTS[random.random() < 0.2]
            events.append(("add", prefix + own, random.randint(1, 12), salt, random.randint(0, 2)))
        elif kind.startswith("step"):
            events.append(("step", who if kind != "step" else None))
        else:
            events.append(
                (kind, *{"abort": [who], "finish_early": [who], "sleep": [random.randint(1, 3)]}.get(kind, []))
            )
    return events


class Drive:
    """Plays events on a core and keeps its own account of everyone's fate and wait."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.clock = FakeClock(5.0)
        self.token_type = options["token_type"]
        self.core: EngineCore = make_shadow_core(
            options["num_kv_blocks"],
            options["block_size"],
            MAX_MODEL_LEN,
            vocabulary=VOCABULARY,
            token_type=self.token_type,
            clock=self.clock,
            max_queue=options["max_queue"],
            max_num_seqs=options["seats"],
            max_num_batched_tokens=options["budget"],
            policy=options["policy"],
            ageing=options["ageing"],
            enable_prefix_caching=options["prefix_caching"],
            watermark=options["watermark"],
        )
        self.max_queue = options["max_queue"]
        self.recorder = MemoryRecorder()
        self.core.record_to(self.recorder)
        self.sequences: list[Sequence] = []
        self.waited: Counter[str] = Counter()
        self.ids = itertools.count()

    def play(self, events: list[tuple[Any, ...]]) -> None:
        for kind, *arguments in events:
            getattr(self, kind)(*arguments)
            check_blocks(self.core)
        while self.core.has_work:
            assert self.core.scheduler.num_steps < 3000, f"stall: {self.core.num_live} live"
            self.step(None)
            check_blocks(self.core)
        self.check_end()

    def add(self, tokens: tuple[int, ...], max_tokens: int, salt: str | None, priority: int) -> None:
        prompt = [self.token_type(token) for token in tokens]
        request = make_request(f"r{next(self.ids)}", prompt, max_tokens, priority=priority, cache_salt=salt)
        scheduler = self.core.scheduler
        most = min(len(prompt) + max_tokens, MAX_MODEL_LEN) - 1
        manager = scheduler.block_manager
        impossible = not prompt or most > manager.num_blocks * manager.block_size
        live = [seq for seq in self.sequences if seq.finish_reason is None]
        is_full = self.max_queue is not None and len(live) - scheduler.num_running >= self.max_queue
        if impossible or is_full:
            with pytest.raises(RequestRefused) as refusal:
                self.core.add(request)
            assert impossible or refusal.type is QueueFull
        else:
            self.sequences.append(self.core.add(request))

    def step(self, abort_meanwhile: int | None) -> None:
        _, batch = self.core.begin_step()
        if batch is None:
            return
        check_batch(self.core, batch)
        token_ids, duration = self.core.executor.execute(batch)
        if abort_meanwhile is not None:
            self.abort(abort_meanwhile)
        self.sleep(duration)
        for one in self.core.finish_step(batch, token_ids):
            assert one.seq.emitted_last_s == self.clock()
            assert one.token_id == one.seq.token_ids[-1]

    def abort(self, index: int) -> None:
        self.core.abort(f"r{index}")

    def finish_early(self, index: int) -> None:
        live = [seq for seq in self.sequences if seq.finish_reason is None]
        if live:
            self.core.finish_early(live[index % len(live)], "stop string")

    def sleep(self, seconds: float) -> None:
        running = {id(seq) for seq in self.core.scheduler.running}
        for seq in self.sequences:
            if seq.finish_reason is None and id(seq) not in running:
                self.waited[seq.request_id] += seconds  # type: ignore[assignment]
        self.clock.advance(seconds)

    def clear_cache(self) -> None:
        self.core.scheduler.block_manager.clear_cache()

    def check_end(self) -> None:
        core = self.core
        assert core.num_live == 0
        assert core.scheduler.block_manager.num_used_blocks == 0
        assert core.executor.forgotten == {seq.request_id: 1 for seq in self.sequences}  # type: ignore[attr-defined]
        for seq in self.sequences:
            self.check_sequence(seq)
        inbox, waiting, running = self.recorder.areas()
        assert inbox + waiting == pytest.approx(sum(seq.wait_total_s for seq in self.sequences))
        assert inbox + waiting + running == pytest.approx(sum(seq.done_s - seq.received_s for seq in self.sequences))
        assert [t for t, *_ in self.recorder.gauge] == sorted(t for t, *_ in self.recorder.gauge)

    def check_sequence(self, seq: Sequence) -> None:
        output, reason = expected_output(seq.request, VOCABULARY, MAX_MODEL_LEN)
        got = seq.token_ids[seq.num_prompt_tokens :]
        if seq.finish_reason in ("aborted", "stop string"):
            assert got == output[: len(got)]
        else:
            assert (got, seq.finish_reason) == (output, reason)
            assert (
                seq.received_s
                <= seq.drained_s
                <= seq.scheduled_s
                <= seq.emitted_first_s
                <= seq.emitted_last_s
                == seq.done_s
            )
        assert seq.wait_total_s == pytest.approx(self.waited[seq.request_id])


class NoMemory(BlockManager):
    """Looks the head of the line up in every step."""

    def admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        self._refused = None
        return super().admit(seq, keep_free)


def drive(seed: int, num_events: int) -> EngineCore:
    """The whole schedule that a seed stands for."""
    random = Random(seed)
    run = Drive(random_options(random))
    run.play(random_events(random, num_events))
    return run.core


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=SEEDS, num_events=st.integers(10, 120))
def test_no_wrong_read_leak_or_stall(seed: int, num_events: int) -> None:
    drive(seed, num_events)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_a_refused_head_is_admitted_in_the_very_step_in_which_a_lookup_in_each_would_admit_it(seed: int) -> None:
    def batches(manager: type[BlockManager]) -> list[list[tuple[str, int]]]:
        random = Random(seed)
        run = Drive(random_options(random))
        run.core.scheduler.block_manager.__class__ = manager
        run.play(random_events(random, 100))
        return run.recorder.batches

    assert batches(BlockManager) == batches(NoMemory)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, derandomize=True)
@given(seed=SEEDS, num_events=st.integers(10, 200))
def test_no_wrong_read_leak_or_stall_in_thousands_of_schedules(seed: int, num_events: int) -> None:
    drive(seed, num_events)


def test_random_schedules_reach_what_they_are_meant_to_test() -> None:
    """Preemptions, prefix hits and evictions, each in a good part of the schedules."""
    cores = [drive(seed, 100) for seed in range(40)]
    managers = [core.scheduler.block_manager for core in cores]
    assert sum(core.scheduler.preemptions > 0 for core in cores) >= 10
    assert sum(manager.hit_tokens > 0 for manager in managers) >= 15
    assert sum(manager.evictions > 0 for manager in managers) >= 15


def test_the_shadow_sees_a_wrong_read() -> None:
    """The instrument itself: prompts that the index takes for equal, although they are not."""
    core = make_shadow_core(8, 2, vocabulary=VOCABULARY, max_num_seqs=2)
    for name, prompt in (("one", (1, 2, 3, 4, 5)), ("two", (3, 4, 3, 4, 5))):
        core.add(make_request(name, [BlurredToken(token) for token in prompt]))
    with pytest.raises(WrongRead, match=r"two at position 0: found \(None, \(1,\)\), wanted \(None, \(3,\)\)"):
        run_to_end(core, 100)


@pytest.mark.parametrize("token_type", [FourBitHash, OneHash])
def test_colliding_hashes_change_neither_outputs_nor_hits(token_type: type[int]) -> None:
    requests = [
        make_request(f"r{i}", [1 + (i >> bit) % 2 for bit in range(6)] + [3], 6, cache_salt=SALTS[i % 2])
        for i in range(32)
    ]

    def serve(kind: type[int]) -> tuple[list[list[int]], int]:
        core = make_shadow_core(40, 2, vocabulary=VOCABULARY, token_type=kind, max_num_seqs=6)
        sequences = [
            core.add(Request(r.request_id, [kind(t) for t in r.prompt_token_ids], r.params, cache_salt=r.cache_salt))
            for r in requests
        ]
        run_to_end(core, 500)
        return [seq.token_ids for seq in sequences], core.scheduler.block_manager.hit_tokens

    outputs, hits = serve(token_type)
    assert (outputs, hits) == serve(int)
    assert hits > 0
