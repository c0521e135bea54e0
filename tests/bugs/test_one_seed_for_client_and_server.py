"""One seed for arrivals and service correlated the two: M/M/1 waited half of what theory says, every arrival test green."""

from __future__ import annotations

import numpy as np
from scipy import stats

from workload.arrivals import arrival_times
from workload.lengths import draw_lengths, mean_length


def mean_sojourn(gaps: np.ndarray, services: np.ndarray) -> np.ndarray:
    """Mean time in system of each row's queue, by Lindley's recursion from empty."""
    wait = np.zeros(len(gaps))
    total = np.zeros(len(gaps))
    for i in range(gaps.shape[1]):
        wait = np.maximum(wait - gaps[:, i], 0) + services[:, i]
        total += wait
    return total / gaps.shape[1]


def test_a_queue_fed_and_served_from_one_seed_waits_as_theory_says() -> None:
    load, n, seeds = 0.8, 20_000, range(20)
    law = {"dist": "exponential", "mean": 100_000}  # tokens: fine enough to pass for exponential service of mean 1
    arrivals = np.array([arrival_times({"process": "poisson", "rate": load}, n=n, seed=seed) for seed in seeds])
    services = np.array([draw_lengths(5, law, n, seed=seed)[1] for seed in seeds]) / mean_length(law)
    ours = mean_sojourn(np.diff(arrivals, prepend=0.0), services)
    assert stats.ttest_1samp(ours, 1 / (1 - load)).pvalue > 0.001


def test_the_fault_would_be_seen() -> None:
    load, n, seeds = 0.8, 20_000, range(20)
    draws = np.array([np.random.default_rng(seed).exponential(size=n) for seed in seeds])
    faulty = mean_sojourn(draws / load, draws)  # each gap is its service, stretched
    assert stats.ttest_1samp(faulty, 1 / (1 - load)).pvalue < 1e-6
