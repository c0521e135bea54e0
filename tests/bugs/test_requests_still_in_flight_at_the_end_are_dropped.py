"""One request in a hundred takes 20 s in a run of 30 s: those in flight at its end were dropped, the tail looked good."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.sequence import Request
from tests.bugs.scripted_target import Answer, ScriptedTarget, drive, requests, table
from workload.arrivals import arrival_times
from workload.loops import OpenLoop
from workload.phases import Phases

TIMES = arrival_times({"process": "poisson", "rate": 50}, duration=60.0, seed=4)


def one_in_a_hundred_slow(request: Request) -> Answer:
    return [(20.0 if int(request.request_id) % 100 == 99 else 0.1, (1,), "length")]


@pytest.mark.parametrize(("cooldown_s", "is_waited_for"), [(30.0, True), (1.0, False)])
def test_slow_requests_are_waited_for_or_counted_as_censored(
    tmp_path: Path, cooldown_s: float, is_waited_for: bool
) -> None:
    target = ScriptedTarget(one_in_a_hundred_slow)
    loop = OpenLoop(TIMES, requests(len(TIMES)))
    result, run = drive(target, loop, tmp_path, Phases(0.0, 30.0), cooldown_limit_s=cooldown_s)
    rows = table(run)
    measured = rows[rows["phase"] == "measure"]
    assert len(measured) == (TIMES < 30).sum()  # every arrival is a row, whatever became of it
    slow = measured["request_id"].astype(int) % 100 == 99
    latency = (measured["finished_s"] - measured["intended_s"]).where(measured["finish_reason"].notna(), np.inf)
    assert (latency[slow] >= 20 - 1e-9).all()
    censored = np.isinf(latency)
    if is_waited_for:
        assert not censored.any()
    else:
        late = measured["intended_s"] > 11.0 + 1e-9  # in flight at 31 s, when the limit is reached
        assert (censored == (slow & late)).all()
        assert censored.sum() > 5
    assert sum(result.counts.values()) == len(rows)
    share = slow.mean()  # the censored ones count as infinite: the slow share shows at its quantile either way
    assert np.quantile(latency, 1 - share / 2, method="inverted_cdf") >= 20 - 1e-9
