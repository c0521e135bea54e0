"""KLB and Marchal under Markov-modulated arrivals: true waits 2 to 5 times the formula, at the same variance of the gaps."""

from __future__ import annotations

import numpy as np

from analysis.arrivals import MMPP2
from analysis.predictions.base import judge
from analysis.predictions.bursts import gg1, mmpp_gaps
from analysis.queues import GG1, MMPP1
from analysis.queues.service import exponential
from tests.analysis.known_study import draw_plan, run_plan
from workload.plan import RequestPlan

BURSTS = MMPP2((0.4, 3.6), (0.05, 0.05), 0.0, 0.0, 1)


def test_the_formulas_are_several_times_too_low() -> None:
    gaps = mmpp_gaps(BURSTS, np.random.default_rng(0), 200_000)
    ca2 = float(gaps.var() / gaps.mean() ** 2)
    exact = MMPP1(list(BURSTS.rates), [[-0.05, 0.05], [0.05, -0.05]], exponential(0.35)).Wq
    for method in ("klb", "marchal"):
        assert exact > 2 * GG1(BURSTS.mean_rate, 0.35, ca2, 1.0, method).Wq


def test_compare_tests_that_gaps_are_independent_before_it_believes_them() -> None:
    plan = draw_plan(2.0, 300.0)
    intended = np.cumsum(mmpp_gaps(BURSTS, np.random.default_rng(3), len(plan.intended_s)))
    phases = np.where(intended < 5, "warmup", np.where(intended < 305, "measure", "cooldown"))
    plan = RequestPlan(intended, plan.prompt_tokens, plan.output_tokens, plan.output_tokens, phases, 5.0, 305.0)
    run = run_plan(plan, 1, 2.0)
    run.meta["spec"]["arrivals"] = {"process": "mmpp"}
    assert all(
        "assumption violated: independent, identically distributed gaps" in row.verdict for row in judge(gg1(run))
    )
