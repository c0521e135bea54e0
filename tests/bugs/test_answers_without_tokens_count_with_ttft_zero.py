"""Half of the answers had no tokens and were counted with a time to first token of 0."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.runs import open_run
from analysis.summary import latencies
from engine.sequence import Request
from tests.bugs.scripted_target import Answer, ScriptedTarget, drive, requests, table
from workload.loops import OpenLoop


def every_other_empty(request: Request) -> Answer:
    if int(request.request_id) % 2:
        return [(0.001, (), "stop")]
    return [(0.050, (1,), None), (0.060, (2,), "stop")]


def test_an_answer_without_tokens_has_no_time_to_first_token(tmp_path: Path) -> None:
    result, run = drive(ScriptedTarget(every_other_empty), OpenLoop(np.arange(40) * 0.1, requests(40, 2)), tmp_path)
    rows = table(run)
    empty = rows["output_tokens"] == 0
    assert empty.sum() == 20
    assert rows.loc[empty, ["first_token_s", "last_token_s"]].isna().all().all()
    ttft = rows["first_token_s"] - rows["intended_s"]
    assert ttft.dropna().to_numpy() == pytest.approx([0.05] * 20)
    assert sorted(latencies(open_run(run))["ttft"])[20:] == [math.inf] * 20  # no first token ever: never a good one
    assert result.counts == {"stop": 40}  # they did end, and are counted
