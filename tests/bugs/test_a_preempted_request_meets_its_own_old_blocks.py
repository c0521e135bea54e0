"""Reported against nano-vllm (211, 233): a preempted request finds the blocks it held before; counts go stale, tables run out
of range."""

from __future__ import annotations

import random

import pytest

from tests.engine.shadow import expected_output, make_request, make_shadow_core, run_to_end


@pytest.mark.parametrize("size", [1, 2, 3])
def test_hundreds_of_requests_with_shared_prefixes_in_a_tiny_cache(size: int) -> None:
    vocabulary = 40
    core = make_shadow_core(36 // size, size, vocabulary=vocabulary, max_num_seqs=6, max_num_batched_tokens=12)
    draw = random.Random(size)
    prefixes = [[draw.randint(1, 9) for _ in range(9)] for _ in range(3)]
    sequences = []
    for index in range(200):
        prompt = draw.choice(prefixes)[: draw.randint(3, 9)] + [draw.randint(1, 2) for _ in range(draw.randint(1, 4))]
        sequences.append(core.add(make_request(f"r{index}", prompt, draw.randint(1, 12))))
    run_to_end(core, 3000)  # every read is checked on the way
    manager = core.scheduler.block_manager
    assert core.scheduler.preemptions > 20
    assert min(manager.hit_tokens, manager.evictions) > 100
    for seq in sequences:
        output, reason = expected_output(seq.request, vocabulary, 1000)
        assert (seq.token_ids[seq.num_prompt_tokens :], seq.finish_reason) == (output, reason)
