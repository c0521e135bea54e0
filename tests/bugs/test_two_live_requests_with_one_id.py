"""Reported against vLLM (10583, 15041): a second request under the id of one that is live spoils both. Also our own case: an
abort that comes after its request has ended must not end the next request of that id."""

from __future__ import annotations

import pytest

from engine.scheduler import RequestRefused
from tests.engine.shadow import checked_step, expected_output, make_request, make_shadow_core, run_to_end


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_second_is_refused_and_the_first_unharmed(steps: int) -> None:
    core = make_shadow_core(50, 2, vocabulary=1000)
    first = core.add(make_request("x", [1, 2, 3], 6))
    for _ in range(steps):
        checked_step(core)
    with pytest.raises(RequestRefused, match="request id 'x' is live already; give each request its own id"):
        core.add(make_request("x", [7, 8], 2))
    run_to_end(core, 10)
    assert first.token_ids[3:] == expected_output(first.request, 1000, 1000)[0]


def test_an_id_is_free_again_when_its_request_is_over() -> None:
    core = make_shadow_core(50, 2, vocabulary=1000)
    for _ in range(3):
        seq = core.add(make_request("x", [1, 2, 3], 2))
        run_to_end(core, 5)
        assert seq.finish_reason == "length"


def test_a_late_abort_does_not_end_the_next_request_of_that_id() -> None:
    core = make_shadow_core(50, 2, vocabulary=1000)
    core.add(make_request("x", [1, 2, 3], 1))
    run_to_end(core, 2)
    core.abort("x")  # it ended a moment ago
    again = core.add(make_request("x", [1, 2, 3], 4))
    run_to_end(core, 10)
    assert (again.finish_reason, again.num_output_tokens) == ("length", 4)


def test_an_abort_before_a_reuse_in_the_same_step_ends_the_first_only() -> None:
    core = make_shadow_core(50, 2, vocabulary=1000)
    first = core.add(make_request("x", [1, 2, 3], 9))
    checked_step(core)
    core.abort("x")
    with pytest.raises(RequestRefused, match="is live already"):
        core.add(make_request("x", [4], 2))
    checked_step(core)
    again = core.add(make_request("x", [4], 2))
    run_to_end(core, 5)
    assert (first.finish_reason, again.finish_reason) == ("aborted", "length")
