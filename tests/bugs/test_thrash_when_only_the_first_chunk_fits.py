"""Reported against vLLM (21809): a prompt was admitted because its first chunk fitted; several such prompts preempted
each other without end. Here nobody is admitted before the whole prompt has its blocks."""

from __future__ import annotations

from tests.engine.shadow import checked_step, make_request, make_shadow_core


def test_eight_long_prompts_with_room_for_three_run_three_at_a_time_without_preemption() -> None:
    core = make_shadow_core(30, 8, vocabulary=10**9, max_num_seqs=8, max_num_batched_tokens=36)
    for index in range(8):
        core.add(make_request(f"r{index}", 72, 9))  # nine blocks, ten in the end; two steps to compute
    most = 0
    while core.has_work:
        checked_step(core)
        most = max(most, core.scheduler.num_running)
    assert (most, core.scheduler.preemptions, core.num_live) == (3, 0, 0)
