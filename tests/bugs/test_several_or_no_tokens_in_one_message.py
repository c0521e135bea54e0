"""Four tokens in one message, then an empty one: gaps between tokens came out wrong, or a division by zero."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.runs import open_run
from analysis.summary import latencies
from tests.bugs.scripted_target import Answer, ScriptedTarget, drive, requests, table
from workload.loops import OpenLoop


def in_fours(request: object) -> Answer:
    """A role-only message, four tokens, four more, an empty one, and the end without a token."""
    return [
        (0.010, (), None),
        (0.050, (1, 2, 3, 4), None),
        (0.090, (5, 6, 7, 8), None),
        (0.095, (), None),
        (0.100, (), "stop"),
    ]


def test_tokens_are_stamped_one_by_one_and_empty_messages_are_no_tokens(tmp_path: Path) -> None:
    _, run = drive(ScriptedTarget(in_fours), OpenLoop(np.array([0.0, 1.0]), requests(2, 8)), tmp_path)
    rows = table(run).sort_values("intended_s", ignore_index=True)
    assert rows["output_tokens"].tolist() == [8, 8]
    assert (rows["first_token_s"] - rows["intended_s"]).tolist() == pytest.approx([0.05, 0.05])
    assert (rows["last_token_s"] - rows["intended_s"]).tolist() == pytest.approx([0.09, 0.09])
    assert (rows["finished_s"] - rows["intended_s"]).tolist() == pytest.approx([0.1, 0.1])
    assert latencies(open_run(run))["tpot"].tolist() == pytest.approx([0.04 / 7, 0.04 / 7])
    stamps = table(run, "tokens").set_index("request_id")["token_s"]["0"]
    assert np.diff(stamps).tolist() == pytest.approx([0, 0, 0, 0.04, 0, 0, 0])


def test_one_token_has_no_time_per_output_token_and_nothing_divides_by_zero(tmp_path: Path) -> None:
    target = ScriptedTarget(lambda request: [(0.05, (1,), None), (0.06, (), "length")])
    _, run = drive(target, OpenLoop(np.array([0.0]), requests(1)), tmp_path)
    row = table(run).iloc[0]
    assert row["output_tokens"] == 1
    assert row["first_token_s"] == row["last_token_s"] == pytest.approx(0.05)
    assert math.isfinite(row["finished_s"])
    assert np.isnan(latencies(open_run(run))["tpot"]).all()
