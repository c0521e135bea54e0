"""A design fault of vLLM's records: a preempted request waits a second time, and that wait is booked as time decoding. Here
the wait is the sum over all visits, and the stages add up to the time in the engine."""

from __future__ import annotations

import pytest

from tests.engine.shadow import FakeClock, checked_step, make_request, make_shadow_core


def test_every_wait_counts_and_the_stages_add_up() -> None:
    clock = FakeClock()
    core = make_shadow_core(6, 2, vocabulary=10**9, clock=clock, max_num_seqs=2, enable_prefix_caching=False)
    first = core.add(make_request("first", 6, 5))
    second = core.add(make_request("second", 6, 3))
    computing = {first.request_id: 0.0, second.request_id: 0.0}
    while core.has_work:
        began = clock.now
        checked_step(core)
        begun = [seq for seq in (first, second) if seq.block_table or seq.done_s == clock.now]
        for seq in begun:
            computing[seq.request_id] += clock.now - began
    assert second.preemptions == 1
    assert second.wait_total_s == 4.0  # preempted at 1 s, admitted again when the first had ended at 5 s
    assert second.scheduled_s - second.received_s == 0.0  # the first visit alone would hide it
    for seq in (first, second):
        assert seq.wait_total_s + computing[seq.request_id] == pytest.approx(seq.done_s - seq.received_s)
