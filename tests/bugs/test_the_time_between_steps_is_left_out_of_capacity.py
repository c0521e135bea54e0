"""A step-time model without the gaps between steps: capacity 22 % too high, and near saturation nothing fits any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.capacity import capacity
from analysis.fit.step_time import fit_step_time
from analysis.predictions.closed import limits_of
from analysis.runs import Run
from analysis.simulation import simulate_engine
from tests.analysis.known_study import TRUTH, draw_plan, engine_facts

GAP_S = 0.005


def with_gaps(rate: float, measure_s: float) -> Run:
    run = simulate_engine(draw_plan(rate, measure_s), TRUTH, engine_facts(8), gap_s=GAP_S, cooldown_limit_s=10.0)
    run.meta |= {"rate": rate, "engine": {"max_num_seqs": 8, "max_num_batched_tokens": 256}, **engine_facts(8)}
    return run


def test_what_is_fitted_at_low_load_predicts_the_capacity_of_an_engine_with_gaps() -> None:
    model = fit_step_time(with_gaps(5.0, 40.0))
    saturated = with_gaps(40.0, 20.0)
    measured = capacity(saturated)
    assert limits_of(saturated, model).saturation == pytest.approx(measured.rate, rel=0.06)
    without = replace(model, gap_s=0.0, gap_prices=(0.0, 0.0, 0.0))
    assert limits_of(saturated, without).saturation > 1.15 * measured.rate
