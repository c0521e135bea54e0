"""A simulator's waits lay 28 to 71 % below theory from half load on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.queues import MM1
from analysis.simulation.queues import simulate_queue

CUT = {0.5: 50.0, 0.8: 300.0, 0.95: 3000.0}


@pytest.mark.parametrize(("rho", "runs", "n"), [(0.5, 20, 1000), (0.8, 20, 2500)])
def test_one_exponential_server_waits_as_long_as_theory_says(rho: float, runs: int, n: int) -> None:
    means = []
    for seed in range(runs):
        rng = np.random.default_rng([seed, n])
        arrivals, services = np.cumsum(rng.exponential(1 / rho, n)), rng.exponential(1.0, n)
        measured = simulate_queue(arrivals, services, warmup_s=CUT[rho]).measured
        means.append(float(measured["wait_total"].mean()))
    half = stats.t.ppf(0.9995, runs - 1) * np.std(means, ddof=1) / runs**0.5
    assert abs(np.mean(means) - MM1(rho, 1.0).Wq) < half
    assert half < 0.28 * MM1(rho, 1.0).Wq * 1.5  # narrow enough to see the reported error
