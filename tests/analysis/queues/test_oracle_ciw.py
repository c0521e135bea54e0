"""Queue models against Ciw, an independent simulator: theory inside the interval of replications."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.queues import MG1, BatchArrival, MMc, MMcK, OpenQueue, Priority
from analysis.queues.service import hyperexponential

pytestmark = pytest.mark.oracle
ciw: Any = pytest.importorskip("ciw")

REPLICATIONS = 10


def waits(network: Any, horizon: float, cut: float, seed: int, customer_class: str | None = None) -> np.ndarray:
    ciw.seed(seed)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_time(horizon)
    records = simulation.get_all_records(only=["service"])
    return np.array(
        [
            r.waiting_time
            for r in records
            if cut < r.arrival_date < horizon - cut and customer_class in (None, r.customer_class)
        ]
    )


def inside(values: list[float], truth: float) -> bool:
    half = stats.t.ppf(0.9995, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return bool(abs(np.mean(values) - truth) < half)


@pytest.mark.parametrize("name", ["mmc", "mg1", "mmck", "batches"])
def test_mean_wait_and_tail_lie_inside_ciws_interval(name: str) -> None:
    exponential = ciw.dists.Exponential
    if name == "mmc":
        model: OpenQueue = MMc(1.4, 1.0, 2)
        options = {"arrival_distributions": [exponential(1.4)], "service_distributions": [exponential(1.0)]}
        options["number_of_servers"] = [2]
    elif name == "mg1":
        model = MG1(0.6, hyperexponential([0.5, 0.5], [2.0, 2 / 3]))
        service = ciw.dists.HyperExponential(rates=[2.0, 2 / 3], probs=[0.5, 0.5])
        options = {
            "arrival_distributions": [exponential(0.6)],
            "service_distributions": [service],
            "number_of_servers": [1],
        }
    elif name == "mmck":
        model = MMcK(2.5, 1.0, 2, 6)
        options = {"arrival_distributions": [exponential(2.5)], "service_distributions": [exponential(1.0)]}
        options |= {"number_of_servers": [2], "queue_capacities": [4]}
    else:
        model = BatchArrival(0.3, {1: 0.5, 3: 0.5}, ([1.0], [[-1.0]]))
        options = {"arrival_distributions": [exponential(0.3)], "service_distributions": [exponential(1.0)]}
        options |= {"number_of_servers": [1], "batching_distributions": [ciw.dists.Pmf([1, 3], [0.5, 0.5])]}
    network = ciw.create_network(**options)
    runs = [waits(network, 900.0, 80.0, seed) for seed in range(REPLICATIONS)]
    at = model.wait_quantile(0.9)
    assert inside([float(w.mean()) for w in runs], model.Wq)
    assert inside([float((w > at).mean()) for w in runs], 0.1)


def test_priority_classes_lie_inside_ciws_interval() -> None:
    exponential = ciw.dists.Exponential
    network = ciw.create_network(
        arrival_distributions={"high": [exponential(0.3)], "low": [exponential(0.4)]},
        service_distributions={"high": [exponential(1.0)], "low": [exponential(1.0)]},
        priority_classes={"high": 0, "low": 1},
        number_of_servers=[1],
    )
    model = Priority([0.3, 0.4], [([1.0], [[-1.0]])] * 2)
    for k, name in enumerate(("high", "low")):
        assert inside(
            [float(waits(network, 900.0, 80.0, seed, name).mean()) for seed in range(REPLICATIONS)],
            model.Wq_by_class[k],
        )
