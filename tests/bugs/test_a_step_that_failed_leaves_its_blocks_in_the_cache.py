"""Our own case: blocks are entered in the prefix cache when they are scheduled. Where the executor then raises, or the user
interrupts it, they were never written, and the next request with that prompt would read what was there before."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.executors.base import ScheduledBatch
from tests.engine.shadow import (
    FakeClock,
    ShadowExecutor,
    check_blocks,
    expected_output,
    make_request,
    make_scheduler,
    run_to_end,
)


class Interrupted(ShadowExecutor):
    """Raises in the step of this number, before it has written anything."""

    fails_in = 0
    steps = -1

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        self.steps += 1
        if self.steps == self.fails_in:
            raise KeyboardInterrupt
        return super().execute(batch)


def _serve(core: EngineCore, clock: FakeClock) -> None:
    while core.has_work:
        clock.advance(1.0)
        core.step()


@pytest.mark.parametrize("fails_in", range(4))
@pytest.mark.parametrize("abort_first", [True, False])
def test_later_requests_read_nothing_of_it_and_the_others_go_on(fails_in: int, abort_first: bool) -> None:
    executor = Interrupted(2, 40, 100, vocabulary=1000)
    executor.fails_in = fails_in
    clock = FakeClock()
    core = EngineCore(make_scheduler(40, 2, 100, max_num_seqs=3, max_num_batched_tokens=5), executor, clock=clock)
    sequences = [core.add(make_request(f"r{i}", [1, 2, 3, 4, 5, 6, 7, i % 2], 6)) for i in range(4)]
    with pytest.raises(KeyboardInterrupt):
        _serve(core, clock)
    assert (core.scheduler.num_running, core.scheduler.num_waiting) == (0, 4)
    check_blocks(core)
    if abort_first:
        core.abort("r0")
    sequences.append(core.add(make_request("same prompt", [1, 2, 3, 4, 5, 6, 7, 0], 6)))
    run_to_end(core, 60)
    for seq in sequences:
        if seq.finish_reason != "aborted":
            assert seq.token_ids[8:] == expected_output(seq.request, 1000, 100)[0]
    assert (sequences[0].finish_reason == "aborted") == abort_first
