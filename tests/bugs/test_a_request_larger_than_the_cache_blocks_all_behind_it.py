"""Reported against vLLM (35541, 39734): a request that needs more blocks than there are waits for ever, and so does everybody
behind it."""

from __future__ import annotations

import pytest

from engine.scheduler import RequestRefused
from tests.engine.shadow import make_request, make_shadow_core, run_to_end


def test_it_is_refused_with_the_numbers_and_the_short_one_completes() -> None:
    core = make_shadow_core(50, 16, 2000, vocabulary=10**9)
    for index in range(5):
        with pytest.raises(
            RequestRefused,
            match=rf"'big {index}' may need 64 KV blocks \(1011 tokens, 16 a block\); the cache has 50: lower max_tokens, "
            "shorten the prompt or raise num_kv_blocks",
        ):
            core.add(make_request(f"big {index}", 63 * 16, 4))
    short = core.add(make_request("short", 20, 4))
    assert run_to_end(core, 10) == 4
    assert short.finish_reason == "length"


def test_max_tokens_beyond_the_cache_is_refused_too_not_found_out_later() -> None:
    core = make_shadow_core(50, 16, 2000)
    with pytest.raises(RequestRefused, match="may need 51 KV blocks"):
        core.add(make_request("grows", 10, 800 - 10 + 2))
    core.add(make_request("grows", 10, 800 - 10 + 1))
