"""Mean ITL below mean TPOT looked like a fault: one counts tokens, the other requests. Each is printed under its own name."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.intervals import Estimate
from analysis.report_text import summary_text
from analysis.runs import Run
from analysis.summary import inter_token, summarize


def three_answers() -> Run:
    """1, 2 and 500 tokens: no gap, one of 1 s, 499 of 10 ms each."""
    intended, tokens = np.array([0.0, 1.0, 2.0]), np.array([1, 2, 500])
    last = intended + 0.1 + np.array([0.0, 1.0, 4.99])
    requests = pd.DataFrame(
        {
            "request_id": list("abc"),
            "phase": "measure",
            "intended_s": intended,
            "sent_s": intended,
            "scheduled_s": intended,
            "first_token_s": intended + 0.1,
            "last_token_s": last,
            "finished_s": last,
            "output_tokens": tokens,
            "prompt_tokens": 8,
            "cached_tokens": [0, 2, 4],
            "preemptions": [0, 1, 2],
            "finish_reason": "length",
        }
    )
    return Run.from_tables(requests, meta={"recording": {"evictions": 7}, "experiment": "three", "point": "answers"})


def test_lengths_1_2_and_500() -> None:
    summary = summarize(three_answers())
    assert summary.tpot.sample_mean == pytest.approx((1.0 + 0.01) / 2)
    assert summary.itl.sample_mean == pytest.approx((1.0 + 499 * 0.01) / 500)
    assert (summary.tpot.n, summary.tpot.undefined, summary.itl.n) == (2, 1, 500)


def test_both_are_printed_and_so_is_what_the_engine_counted() -> None:
    lines = summary_text([summarize(three_answers())], [(np.nan, np.nan)], [], pd.DataFrame()).splitlines()
    head = next(i for i, line in enumerate(lines) if "mean ITL" in line)
    cells = ["three/answers", "505.0", "12.0", "2096.7", "25.0", "%", "7", "3"]
    assert lines[head].split("  ")[0].strip() == "run"
    assert lines[head + 2].split() == cells


def test_its_interval_is_that_of_a_ratio() -> None:
    """Longer answers with shorter gaps: it covers the true ratio in 95 % of 200 samples, but for 4 standard errors."""
    rng = np.random.default_rng(0)
    gaps = np.arange(1.0, 2000.0)
    truth = float((0.95 ** (gaps - 1) / 20) @ (gaps / np.sqrt(gaps + 1))) / 20
    held = 0
    for _ in range(200):
        tokens = rng.geometric(1 / 20, 400) + 1.0
        tpot = rng.exponential(1.0, 400) / np.sqrt(tokens)
        found = inter_token(tpot, tokens).mean
        assert isinstance(found, Estimate)
        held += found.contains(truth)
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / 200) < held / 200
