"""A run's summary against hand calculations: counts, percentiles and their support, objectives, refusal of unstable runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.intervals import Estimate, TooShort
from analysis.runs import Run
from analysis.summary import QUANTILES, describe, latencies, summarize, write_analysis
from analysis.tails import QuantileInterval
from tests.analysis.known_study import draw_plan, run_plan, write_run

SLO = {"ttft_ms": 500.0, "tpot_ms": 110.0, "attain": 0.5}


def six_requests(slo: dict[str, float] | None = None) -> Run:
    """One in warm-up, five in the measured window of 10 s: one good, one slow, one refused, one of a token, one censored."""
    requests = pd.DataFrame(
        {
            "request_id": list("abcdef"),
            "phase": ["warmup"] + 5 * ["measure"],
            "intended_s": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "sent_s": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "first_token_s": [0.1, 1.2, 2.9, np.nan, 4.4, np.nan],
            "last_token_s": [0.5, 1.6, 3.4, np.nan, 4.4, np.nan],
            "finished_s": [0.5, 1.6, 3.4, 3.1, 4.4, np.nan],
            "received_s": [0.0, 1.0, 2.0, np.nan, 4.0, np.nan],
            "scheduled_s": [0.0, 1.0, 2.0, np.nan, 4.0, np.nan],
            "done_s": [0.5, 1.6, 3.4, np.nan, 4.4, np.nan],
            "lag": 0.0,
            "cap_wait": 0.0,
            "wait_first": 0.0,
            "wait_total": 0.0,
            "output_tokens": [5, 5, 6, 0, 1, 0],
            "finish_reason": ["length", "length", "stop", "refused", "length", None],
        }
    )
    gauge = pd.DataFrame({"t_s": [0.0, 1.0, 1.6, 2.0, 3.4], "inbox": 0, "waiting": 0, "running": [0, 1, 0, 2, 0]})
    steps = pd.DataFrame({"step": [0, 1], "start_s": [0.5, 3.0], "end_s": [1.5, 4.0]})
    meta = {
        "window": {"measure_start_s": 1.0, "measure_end_s": 11.0},
        "engine": {"max_num_seqs": 4},
        "spec": {"slo": slo} if slo else {},
    }
    return Run.from_tables(requests, gauge=gauge, steps=steps, meta=meta)


def test_latencies_count_from_the_intended_arrival_and_what_never_ended_is_infinite() -> None:
    found = latencies(six_requests())
    assert found["e2e"].tolist() == pytest.approx([0.6, 1.4, math.inf, 0.4, math.inf])
    assert found["ttft"].tolist() == pytest.approx([0.2, 0.9, math.inf, 0.4, math.inf])
    tpot = found["tpot"]
    assert tpot[:2].tolist() == pytest.approx([0.4 / 4, 0.5 / 5])
    assert np.isnan(tpot[3])  # a single token has no time per token
    assert np.isinf(tpot[[2, 4]]).all()


def test_counts_rates_occupancy_and_busy_by_hand() -> None:
    summary = summarize(six_requests())
    counts = summary.measured
    assert (counts.arrived, counts.finished, counts.refused, counts.in_flight) == (5, 3, 1, 1)
    assert counts.agree
    assert (summary.load.offered, summary.load.accepted, summary.load.completed) == pytest.approx((0.5, 0.4, 0.3))
    assert summary.mean_running == pytest.approx((0.6 * 1 + 1.4 * 2) / 10)
    assert summary.occupancy == pytest.approx(0.34 / 4)
    assert summary.busy == pytest.approx((0.5 + 1.0) / 10)
    assert summary.slo is None


def test_attainment_is_over_everything_that_arrived() -> None:
    slo = summarize(six_requests(SLO)).slo
    assert slo is not None
    # b and e are good, c is slow to its first token, d was refused, f never ended
    assert (slo.met, slo.arrived, slo.share) == (2, 5, pytest.approx(0.4))
    assert slo.goodput == pytest.approx(0.2)
    assert slo.verdict == "undecided"


def test_percentiles_are_the_inverted_cdf_and_stop_where_the_count_ends() -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(1.0, 1000)
    latency = describe(values)
    for q in QUANTILES:
        found = latency.quantiles[q]
        if isinstance(found, QuantileInterval):
            assert found.value == np.quantile(values, q, method="inverted_cdf")
    assert latency.shown(0.5) is not None
    few = describe(values[:100])
    assert few.shown(0.95) is None
    assert few.shown(0.99) is None
    shown = [latency.shown(q) for q in QUANTILES]
    known = [value for value in shown if value is not None]
    assert known == sorted(known)
    assert shown[: len(known)] == known  # no percentile beyond one that is not supported


def test_a_censored_request_leaves_no_mean_and_the_upper_percentiles_at_infinity() -> None:
    values = np.linspace(1.0, 2.0, 200)[np.random.default_rng(1).permutation(200)]
    values[::5] = np.inf
    latency = describe(values)
    assert isinstance(latency.mean, TooShort)
    assert math.isnan(latency.sample_mean)
    assert (latency.n, latency.censored) == (200, 40)
    assert latency.shown(0.9) == math.inf


def test_the_mean_of_a_long_independent_series_has_an_interval() -> None:
    mean = describe(np.random.default_rng(2).exponential(1.0, 5000)).mean
    assert isinstance(mean, Estimate)
    assert mean.contains(1.0)


@pytest.fixture(scope="module")
def overloaded() -> Run:
    return run_plan(draw_plan(40.0, 20.0), 8, 40.0)


def test_an_unstable_run_is_named_and_has_no_averages(overloaded: Run) -> None:
    summary = summarize(overloaded)
    assert summary.stability.verdict == "unstable"
    assert not summary.stable
    for latency in (summary.ttft, summary.tpot, summary.e2e):
        assert latency.mean is None
        assert latency.quantiles == {}
        assert math.isnan(latency.sample_mean)
    assert any("unstable" in failure for failure in summary.failures)


def test_analysis_json_is_strict_json_and_leaves_run_json_alone(tmp_path: Path, overloaded: Run) -> None:
    write_run(tmp_path / "run", overloaded)
    before = (tmp_path / "run" / "run.json").read_bytes()
    run = Run(overloaded.meta, tmp_path / "run")
    target = write_analysis(run, summarize(run), {"further": [1.0, math.inf]})

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    content = json.loads(target.read_text(), parse_constant=refuse)
    assert content["stability"]["verdict"] == "unstable"
    assert content["stable"] is False
    assert content["further"] == [1.0, "inf"]
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_run_without_measured_requests_says_so() -> None:
    run = six_requests()
    lonely = Run.from_tables(run.requests.iloc[:1], meta=run.meta)
    with pytest.raises(ValueError, match="no request arrived in the measure phase"):
        summarize(lonely)
