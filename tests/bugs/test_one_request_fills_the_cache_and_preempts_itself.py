"""Reported against nano-vllm (274): a prompt fills the whole cache, its next token preempts it, nobody is left to run and an
assert ends the engine."""

from __future__ import annotations

import pytest

from engine.scheduler import RequestRefused
from tests.engine.shadow import make_request, make_shadow_core, run_to_end


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_two_blocks_and_a_prompt_of_exactly_two_blocks(size: int) -> None:
    core = make_shadow_core(2, size, vocabulary=10**9)
    with pytest.raises(RequestRefused, match=r"may need \d KV blocks .* the cache has 2"):
        core.add(make_request("r", 2 * size, 4))
    alone = core.add(make_request("r", 2 * size, 1))  # its only token needs no place in the cache
    run_to_end(core, 2)
    assert alone.num_output_tokens == 1


@pytest.mark.parametrize("caching", [True, False])
def test_several_that_fill_the_cache_together_all_complete(caching: bool) -> None:
    core = make_shadow_core(6, 2, vocabulary=10**9, max_num_seqs=3, enable_prefix_caching=caching)
    sequences = [core.add(make_request(f"r{index}", 4, 9)) for index in range(3)]
    run_to_end(core, 60)
    assert core.scheduler.preemptions > 0
    assert [seq.num_output_tokens for seq in sequences] == [9, 9, 9]
