"""Textbook queues event by event: path by path against the recursions, in the mean against theory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.queues import GIM1, MM1, BatchService, MMcK
from analysis.runs import Run
from analysis.simulation import Batches, Servers, Sharing, simulate_queue
from analysis.simulation.recursions import kiefer_wolfowitz, lindley

N = 15_000


def poisson(rate: float, n: int, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng([seed, 0]).exponential(1 / rate, size=n))


def exponential(mean: float, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).exponential(mean, size=n)


def waits(run: Run) -> np.ndarray:
    return run.requests["wait_total"].to_numpy(dtype=float)


def sojourns(run: Run) -> np.ndarray:
    return (run.requests["done_s"] - run.requests["intended_s"]).to_numpy(dtype=float)


def assert_mean(values: np.ndarray, expected: float) -> None:
    """The expected mean lies in the 99.9 % interval of 30 batch means (the seeds are fixed: a failure is repeatable)."""
    means = values[: len(values) // 30 * 30].reshape(30, -1).mean(axis=1)
    half = stats.t.ppf(0.9995, 29) * means.std(ddof=1) / np.sqrt(30)
    assert half < 0.25 * expected, "the run is too short to show anything"
    assert expected == pytest.approx(values.mean(), abs=half)


def test_one_server_is_lindley_and_three_are_kiefer_wolfowitz() -> None:
    arrivals, services = poisson(0.9, 5000, 1), exponential(1.0, 5000, 1)
    np.testing.assert_allclose(waits(simulate_queue(arrivals, services)), lindley(arrivals, services), atol=1e-8)
    run = simulate_queue(arrivals, 3 * services, Servers(3))
    np.testing.assert_allclose(waits(run), kiefer_wolfowitz(arrivals, 3 * services, 3), atol=1e-8)


def test_the_gauge_integrates_to_the_sojourn_times() -> None:
    run = simulate_queue(poisson(0.8, 3000, 2), exponential(1.0, 3000, 2), Servers(1))
    gauge = run.gauge
    present = (gauge["waiting"] + gauge["running"]).to_numpy()
    area = float(np.sum(present[:-1] * np.diff(gauge["t_s"])))
    assert area == pytest.approx(float(sojourns(run).sum()), rel=1e-9)
    assert present[-1] == 0


def test_a_full_station_refuses_the_share_that_theory_says() -> None:
    lam, capacity = 1.6, 5
    run = simulate_queue(poisson(lam, N, 3), exponential(1.0, N, 3), Servers(2, capacity=capacity))
    refused = (run.requests["finish_reason"] == "refused").to_numpy(dtype=float)
    weights = np.cumprod([1.0, *(lam / min(n, 2) for n in range(1, capacity + 1))])
    assert_mean(refused, weights[-1] / weights.sum())
    accepted = run.requests["finish_reason"] != "refused"
    assert_mean(sojourns(run)[accepted], MMcK(lam, 1.0, 2, capacity).W)


def test_priorities_wait_as_cobham_says() -> None:
    priorities = (np.random.default_rng(4).random(N) < 0.6).astype(int)  # 40 % urgent
    lam = 0.7
    services = exponential(1.0, N, 4)
    run = simulate_queue(poisson(lam, N, 4), services, Servers(order="priority"), priorities=priorities)
    residual = lam * 2.0 / 2
    rho_urgent = 0.4 * lam
    assert_mean(waits(run)[priorities == 0], residual / (1 - rho_urgent))
    assert_mean(waits(run)[priorities == 1], residual / ((1 - rho_urgent) * (1 - lam)))


def test_orders_serve_whom_they_name() -> None:
    arrivals, services = [0.0, 0.1, 0.2, 0.3], [1.0, 3.0, 2.0, 1.0]

    def order(name: str) -> list[int]:
        run = simulate_queue(arrivals, services, Servers(order=name), priorities=[0, 2, 1, 3])  # type: ignore[arg-type]
        return np.argsort(run.requests["scheduled_s"].to_numpy()).tolist()

    assert order("fcfs") == [0, 1, 2, 3]
    assert order("lcfs") == [0, 3, 2, 1]
    assert order("sjf") == [0, 3, 2, 1]
    assert order("priority") == [0, 2, 1, 3]


@pytest.mark.parametrize("law", ["exponential", "two values"])
def test_processor_sharing_does_not_care_for_the_law_of_the_service(law: str) -> None:
    rho = 0.6
    services = (
        exponential(1.0, N, 5) if law == "exponential" else np.random.default_rng(5).choice([0.5, 5.5], N, p=[0.9, 0.1])
    )
    run = simulate_queue(poisson(rho, N, 5), services, Sharing())
    assert_mean(sojourns(run), 1 / (1 - rho))


def test_processor_sharing_by_hand() -> None:
    # job 0 alone for 1 s (1 of 3 served), then two share: job 1 (1 s) ends at 3, job 0 has 2 of 3 and ends alone at 4
    run = simulate_queue([0.0, 1.0], [3.0, 1.0], Sharing())
    np.testing.assert_allclose(run.requests["done_s"], [4.0, 3.0])


def test_sharing_limited_to_one_is_first_come_first_served() -> None:
    arrivals, services = poisson(0.8, 3000, 6), exponential(1.0, 3000, 6)
    np.testing.assert_allclose(
        waits(simulate_queue(arrivals, services, Sharing(limit=1))), lindley(arrivals, services), atol=1e-8
    )


def test_sharing_whose_speed_grows_with_the_jobs_is_many_servers() -> None:
    # with speed min(n, c) everyone in service gets a whole server up to c jobs; exponential services make the number M/M/c's
    lam, c = 1.8, 3
    run = simulate_queue(poisson(lam, N, 7), exponential(1.0, N, 7), Sharing(speed=lambda n: float(min(n, c))))
    servers = simulate_queue(poisson(lam, N, 8), exponential(1.0, N, 8), Servers(c))
    idle, waiting = np.array([lam**n / np.prod(range(1, n + 1)) for n in range(c)]).sum(), lam**c / 6 / (1 - lam / c)
    expected = 1 + waiting / (idle + waiting) / (c - lam)
    assert_mean(sojourns(run), expected)
    assert_mean(sojourns(servers), expected)


def test_batches_take_all_that_wait_for_the_time_of_their_number() -> None:
    run = simulate_queue([0.0, 0.1, 0.2, 0.3, 5.0], [1.0] * 5, Batches(lambda n: 1.0 + 0.1 * n))
    np.testing.assert_allclose(run.requests["done_s"], [1.1, 2.4, 2.4, 2.4, 6.1])
    capped = simulate_queue([0.0, 0.1, 0.2, 0.3], [1.0] * 4, Batches(lambda n: 1.0, most=2))
    np.testing.assert_allclose(capped.requests["done_s"], [1.0, 2.0, 2.0, 3.0])


def test_batches_with_linear_time_are_inoues_queue() -> None:
    lam, alpha, tau0 = 0.6, 0.5, 1.0
    run = simulate_queue(poisson(lam, N, 9), np.zeros(N), Batches(lambda n: alpha * n + tau0))
    assert_mean(sojourns(run), BatchService(lam, alpha, tau0).W)


def test_two_legs_joined_take_the_time_of_flatto_and_hahn() -> None:
    lam, mu = 0.6, 1.0
    legs = np.column_stack([exponential(1 / mu, N, 10), exponential(1 / mu, N, 11)])
    run = simulate_queue(poisson(lam, N, 10), legs, replicas=2, routing="fork_join")
    assert_mean(sojourns(run), (12 - lam / mu) / 8 / (mu - lam))


def test_random_replicas_are_mm1_and_turns_are_erlang_arrivals() -> None:
    lam, c = 1.8, 3
    arrivals, services = poisson(lam, N, 12), exponential(1.0, N, 12)
    random, turns, two, shortest = (
        waits(simulate_queue(arrivals, services, replicas=c, routing=routing, seed=1))
        for routing in ("random", "round_robin", "power_of_two", "jsq")
    )
    assert_mean(random, MM1(lam / c, 1.0).Wq)
    assert_mean(turns, GIM1(stats.gamma(c, scale=1 / lam), 1.0).Wq)
    assert random.mean() > turns.mean() > shortest.mean()
    assert random.mean() > two.mean() > shortest.mean()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="order is 'fifo'"):
        Servers(order="fifo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ascend"):
        simulate_queue([1.0, 0.5], [1.0, 1.0])
    with pytest.raises(ValueError, match=r"\(2, 3\) is wanted"):
        simulate_queue([0.0, 0.5], [1.0, 1.0], replicas=3, routing="fork_join")
    with pytest.raises(ValueError, match="routing is 'best'"):
        simulate_queue([0.0], [1.0], replicas=2, routing="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="priorities"):
        simulate_queue([0.0, 1.0], [1.0, 1.0], priorities=[1])
