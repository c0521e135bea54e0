"""Reported against nano-vllm (190, 106), vLLM (16445) and NeMo-RL (495): a prompt at the maximum length, or the last token at
it, is one too many for a table or is cut."""

from __future__ import annotations

import pytest

from engine.scheduler import RequestRefused
from tests.engine.shadow import make_request, make_shadow_core, run_to_end


def test_lengths_around_the_limit() -> None:
    limit = 10
    core = make_shadow_core(100, 4, limit, vocabulary=10**9)
    one_left = core.add(make_request("limit - 1", limit - 1, 5))
    two_left = core.add(make_request("limit - 2", limit - 2, 5))
    for prompt in (limit, limit + 1):
        with pytest.raises(
            RequestRefused,
            match=rf"has a prompt of {prompt} tokens; max_model_len = 10 .* shorten the prompt to 9 or raise max_model",
        ):
            core.add(make_request("too long", prompt, 5))
    run_to_end(core, 10)
    assert (one_left.num_output_tokens, one_left.finish_reason) == (1, "length")
    assert (two_left.num_output_tokens, two_left.finish_reason) == (2, "length")
