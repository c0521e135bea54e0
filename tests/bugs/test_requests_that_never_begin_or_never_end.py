"""Seen in nano-vllm: `max_tokens=0` never ends, an empty prompt is taken, more requests run than `max_num_seqs`, unknown
options are dropped without a word."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.scheduler import RequestRefused
from tests.engine.shadow import checked_step, make_request, make_shadow_core


def test_an_empty_prompt_and_no_tokens_to_generate_are_refused() -> None:
    core = make_shadow_core(10, 4)
    with pytest.raises(RequestRefused, match="'r' has an empty prompt; give at least one token"):
        core.add(make_request("r", []))
    with pytest.raises(ValueError, match="max_tokens is 0; it must be a whole number, at least 1"):
        SamplingParams(max_tokens=0)
    assert core.num_live == 0


def test_never_more_running_than_seats_although_decodes_leave_budget() -> None:
    core = make_shadow_core(1000, 4, vocabulary=10**9, max_num_seqs=3, max_num_batched_tokens=500)
    for index in range(10):
        core.add(make_request(f"r{index}", 5, 2 + index % 5))
    most = 0
    while core.has_work:
        checked_step(core)
        most = max(most, core.scheduler.num_running)
    assert most == 3


def test_an_unknown_option_is_an_error_that_suggests_the_right_one() -> None:
    with pytest.raises(ValueError, match=r"unknown engine option 'max_num_seq'; did you mean 'max_num_seqs'\?"):
        EngineConfig.from_options(max_num_seq=3)
