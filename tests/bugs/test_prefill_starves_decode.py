"""Reported against nano-vllm (73) and SGLang (32549): while long prompts arrive, a running request gets a token only every so
many seconds. Here every running request that was not preempted gets its token in every step."""

from __future__ import annotations

import random

import pytest

from engine.config import CHOICES
from engine.core import EngineCore
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import SimulatedExecutor
from tests.engine.shadow import FakeClock, make_request, make_scheduler


def _longest_gap(policy: str, seats: int) -> int:
    """Steps between two tokens of a request at most, under long prompts that arrive as a Poisson stream."""
    scheduler = make_scheduler(4000, 4, max_num_seqs=seats, max_num_batched_tokens=32, policy=policy)
    executor = SimulatedExecutor(
        lambda shape: 1.0, PlaceholderTokens(), block_size=4, num_kv_blocks=4000, max_model_len=1000
    )
    core = EngineCore(scheduler, executor, clock=FakeClock())
    draw = random.Random(7)
    last_token: dict[str, int] = {}
    longest = 0
    next_arrival = 0.0
    for step in range(400):
        while next_arrival <= step:
            name = f"r{next_arrival:.9f}"
            core.add(make_request(name, draw.randint(50, 200), 40))
            next_arrival += draw.expovariate(0.5)
        for event in core.step():
            name = event.seq.request_id
            longest = max(longest, step - last_token.get(name, step))
            last_token[name] = step
    assert core.scheduler.num_waiting > 10
    assert core.scheduler.preemptions == 0
    return longest


@pytest.mark.parametrize("policy", CHOICES["policy"])
@pytest.mark.parametrize("seats", [4, 32])
def test_long_prompts_never_starve_a_decode(policy: str, seats: int) -> None:
    assert _longest_gap(policy, seats) == 1
