"""Reported against nano-vllm (144) and vLLM (30320): a prompt of exactly k cached blocks left no token to compute, and the
step crashed. Here the last block is always computed again."""

from __future__ import annotations

import pytest

from tests.engine.shadow import make_request, make_shadow_core, run_to_end


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_prompt_of_exactly_k_cached_blocks_computes_its_last_block_again(blocks: int, size: int) -> None:
    core = make_shadow_core(20, size, vocabulary=10**9)
    prompt = list(range(1, blocks * size + 1))
    outputs = []
    for name in ("once", "twice"):
        seq = core.add(make_request(name, prompt, 3))
        run_to_end(core, 10)
        outputs.append(seq.token_ids)
    assert seq.num_cached_tokens == (blocks - 1) * size
    assert outputs[0] == outputs[1]
