"""More load is never better: in every model means and tails rise with it, and what a closed loop completes with its users."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.queues import (
    GG1,
    GIM1,
    MD1,
    MG1,
    MM1,
    MMPP1,
    PS,
    SJF,
    SRPT,
    BatchArrival,
    BatchService,
    ClosedNetwork,
    ClosedStation,
    ErlangA,
    FirstToken,
    ForkJoin,
    GGc,
    LimitedPS,
    MDc,
    MMc,
    MMcK,
    OpenQueue,
    Priority,
    RobustQueue,
    StateDependent,
)
from analysis.queues.service import erlang, hyperexponential

SPREAD = stats.lognorm(s=0.9, scale=0.6)  # mean 0.9
DATA = [0.2, 0.7, 0.9, 1.4, 1.8]  # mean 1

# Each at a load in (0, 1); those with a law of the wait, then those with means alone.
WITH_LAW: dict[str, Callable[[float], OpenQueue]] = {
    "MM1": lambda load: MM1(load, 1.0),
    "MMc": lambda load: MMc(3 * load, 1.0, 3),
    "MMcK": lambda load: MMcK(3 * load, 1.0, 3, 9),
    "ErlangA": lambda load: ErlangA(3 * load, 1.0, 3, 0.4),
    "MD1": lambda load: MD1(load, 1.0),
    "MDc": lambda load: MDc(7 * load, 1.0, 7),
    "MG1, Erlang": lambda load: MG1(load, erlang(3, 1.0)),
    "MG1, hyperexponential": lambda load: MG1(load, hyperexponential([0.9, 0.1], [1.8, 0.2])),
    "GIM1, Erlang": lambda load: GIM1(erlang(4, 1 / load), 1.0),
    "GIM1, hyperexponential": lambda load: GIM1(hyperexponential([0.8, 0.2], [1.6 * load, 0.4 * load]), 1.0),
    "MMPP1": lambda load: MMPP1([1.5 * load, 0.5 * load], [[-0.2, 0.2], [0.2, -0.2]], erlang(2, 1.0)),
    "BatchArrival": lambda load: BatchArrival(load / 2, {1: 0.4, 3: 0.4, 2: 0.2}, erlang(2, 1.0)),
    "BatchService": lambda load: BatchService(8 * load, 0.1, 0.3),
    "BatchService, capped": lambda load: BatchService(5 * load, 0.1, 0.4, cap=4),
    "StateDependent": lambda load: StateDependent(load * 4**0.5, lambda n: min(n, 4) ** 0.5),
    "LimitedPS": lambda load: LimitedPS(load * 1.6, 1.0, 4, speed=lambda n: 1 + 0.2 * (n - 1)),
}
MEANS_ALONE: dict[str, Callable[[float], OpenQueue]] = {
    "PS": lambda load: PS(load, 1.0),
    "LimitedPS, other sizes": lambda load: LimitedPS(load, 1.0, 4, cs2=0.3),
    "SJF": lambda load: SJF(load, DATA),
    "SRPT": lambda load: SRPT(load, DATA),
    "Priority": lambda load: Priority([0.4 * load, 0.6 * load], [(1.0, 2.0), (1.0, 1.5)]),
    "Priority, preemptive": lambda load: Priority([0.4 * load, 0.6 * load], [(1.0, 2.0), (1.0, 1.5)], preemptive=True),
    "RobustQueue": lambda load: RobustQueue(load, 1.0, 0.5, lambda t: 1 + 4 * t / (10 + t)),
    "ForkJoin": lambda load: ForkJoin(load, 1.0, 4),
    **{
        f"GG1, {method}": lambda load, method=method: GG1(load, 1.0, 0.5, 1.5, method=method)  # type: ignore[misc]
        for method in ("klb", "marchal", "heavy-traffic", "daley")
    },
    **{
        f"GGc, {method}": lambda load, method=method: GGc(3 * load, 1.0, 3, 0.5, 1.5, method=method)  # type: ignore[misc]
        for method in ("allen-cunneen", "klb", "sakasegawa")
    },
}
LOADS = st.floats(0.02, 0.97)


def rises(values: list[float]) -> bool:
    return all(b >= a * (1 - 1e-9) - 1e-12 for a, b in itertools.pairwise(values))


@settings(max_examples=20, deadline=None)
@given(st.lists(LOADS, min_size=2, max_size=4, unique=True))
@pytest.mark.parametrize("name", [*WITH_LAW, *MEANS_ALONE])
def test_means_never_fall_with_load(name: str, loads: list[float]) -> None:
    queues = [(WITH_LAW | MEANS_ALONE)[name](load) for load in sorted(loads)]
    for mean in ("W", "L"):
        values = [getattr(queue, mean) for queue in queues]
        assert rises(values), (mean, values)
        assert min(values) > 0
    if name != "ForkJoin":  # waits in several queues at once
        waits = [queue.Wq for queue in queues] if "other sizes" not in name else [0.0]
        assert rises(waits), waits
        assert min(waits) >= -1e-12


@settings(max_examples=10, deadline=None)
@given(LOADS, LOADS, st.lists(st.floats(0.0, 100.0), min_size=1, max_size=4))
@pytest.mark.parametrize("name", WITH_LAW)
def test_waits_are_never_likelier_to_be_short_at_a_higher_load(
    name: str, one: float, other: float, times: list[float]
) -> None:
    low, high = (WITH_LAW[name](load) for load in sorted((one, other)))
    for t in times:
        assert high.wait_tail(t) >= low.wait_tail(t) - 1e-9


@settings(max_examples=5, deadline=None)
@given(st.lists(st.floats(0.05, 0.95), min_size=2, max_size=2, unique=True))
def test_the_same_for_numerical_inversions(loads: list[float]) -> None:
    low, high = (MG1(load / 0.9, SPREAD) for load in sorted(loads))
    for t in (0.0, 1.0, 5.0, 25.0):
        assert high.wait_tail(t) >= low.wait_tail(t) - 1e-6
    assert rises([low.W, high.W])


@pytest.mark.parametrize("method", ["kingman", "many"])
def test_kingmans_bound_alone_is_large_at_both_ends(method: str) -> None:
    """lam var(gap) / 2 stays as the load goes to 0: it bounds from above, and is no mean."""

    def bound(load: float) -> float:
        if method == "many":
            return GGc(3 * load, 1.0, 3, 0.5, 1.5, method="kingman").Wq
        return GG1(load, 1.0, 0.5, 1.5, method="kingman").Wq

    assert bound(0.01) > bound(0.3) < bound(0.95)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.01, 20.0), st.lists(st.floats(0.01, 5.0), min_size=1, max_size=4))
def test_more_users_complete_no_less_and_wait_no_less(users: int, think: float, demands: list[float]) -> None:
    closed = [ClosedNetwork(n, think, demands) for n in (users, users + 1)]
    stations = [ClosedStation(n, think, lambda k: min(k, 4) ** 0.5 / demands[0]) for n in (users, users + 1)]
    for fewer, more in (closed, stations):
        assert rises([fewer.X, more.X])
        assert rises([fewer.R, more.R])
    low, high = closed[1].bounds
    assert low * (1 - 1e-12) <= closed[1].X <= high * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(1e-3, 2.0), min_size=1, max_size=20),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.lists(st.floats(0.0, 4.0), min_size=2, max_size=6),
)
def test_first_tokens_take_longer_the_busier_the_engine(
    steps: list[float], a: float, b: float, times: list[float]
) -> None:
    idle, busy = (FirstToken(steps, share, 0.05) for share in sorted((a, b)))
    assert rises([idle.mean, busy.mean])
    for queue in (idle, busy):
        tails = [queue.tail(t) for t in sorted(times)]
        assert all(0 <= tail <= 1 for tail in tails)
        assert rises(tails[::-1])
    assert all(busy.tail(t) >= idle.tail(t) for t in times)


@settings(max_examples=30, deadline=None)
@given(LOADS, st.integers(1, 16), st.lists(st.floats(0.0, 200.0), min_size=2, max_size=6))
def test_the_bounds_of_fork_join_are_a_tail_and_keep_their_order(load: float, n: int, times: list[float]) -> None:
    queue = ForkJoin(load, 1.0, n)
    tails = [queue.sojourn_tail_bound(t) for t in sorted(times)]
    assert all(0 <= tail <= 1 for tail in tails)
    assert rises(tails[::-1])
    assert queue.W_lower * (1 - 1e-12) <= queue.W <= queue.W_upper * (1 + 1e-12)
    assert np.isfinite(queue.sojourn_quantile_bound(0.99))
