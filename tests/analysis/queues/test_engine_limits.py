"""A batching engine's closed forms: the rest of a step by simulation, the bounds against the engine in virtual time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.queues import EngineLimits, FirstToken, MMc, budget_limit, kv_limit, seat_limit


def test_time_to_the_first_token_is_what_arrivals_on_a_step_timeline_wait() -> None:
    rng = np.random.default_rng(1)
    steps = rng.lognormal(-3.0, 0.8, 4000)
    idle = rng.exponential(0.02, 4000)
    begins = np.concatenate([[0.0], np.cumsum(steps + idle)[:-1]])
    end = float(begins[-1] + steps[-1] + idle[-1])
    at = rng.uniform(0.0, end, 400_000)
    inside = np.searchsorted(begins, at, side="right") - 1
    rest = np.maximum(begins[inside] + steps[inside] - at, 0.0)
    prefill = rng.choice([0.02, 0.05], at.size)
    model = FirstToken(steps, float(steps.sum() / end), [0.02, 0.05])
    waited = rest + prefill
    assert model.mean == pytest.approx(waited.mean(), abs=4 * waited.std() / at.size**0.5)
    for t in (0.0, 0.03, 0.06, 0.2):
        share = float((waited > t).mean())
        assert model.tail(t) == pytest.approx(share, abs=4 * (share * (1 - share) / at.size) ** 0.5 + 1e-9)
    assert model.quantile(0.9) == pytest.approx(np.quantile(waited, 0.9), rel=0.02)


def test_equal_steps_leave_half_of_one_and_exponential_ones_a_whole_one() -> None:
    assert FirstToken([0.1] * 5, 1.0, 0.0).wait == pytest.approx(0.05)
    steps = np.random.default_rng(2).exponential(0.1, 200_000)
    assert FirstToken(steps, 1.0, 0.0).wait == pytest.approx(0.1, rel=0.02)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=20),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.lists(st.floats(0.0, 30.0), min_size=2, max_size=6),
)
def test_its_tail_is_a_tail(steps: list[float], busy: float, prefill: float, times: list[float]) -> None:
    model = FirstToken(steps, busy, prefill)
    values = [model.tail(t) for t in sorted(times)]
    assert all(0.0 <= v <= 1.0 for v in values)
    assert values == sorted(values, reverse=True)


def test_bounds_are_littles_law_and_servers_that_are_always_busy() -> None:
    # seats that do not slow each other are c servers: stable below c mu
    mu = 1 / (24 * 0.05)
    assert seat_limit(16, 24.0, 0.05) == pytest.approx(16 * mu)
    assert MMc(0.999 * seat_limit(16, 24.0, 0.05), mu, 16).rho == pytest.approx(0.999)
    # 1,000 blocks, 20 held for 2 s each: 50 at a time
    assert kv_limit(1000, 20, 2.0) * 2.0 == pytest.approx(50)
    assert budget_limit(100.0, 28.0, 256, 0.1) * (100 + 28) == pytest.approx(2560)


def test_the_smallest_bound_binds() -> None:
    limits = EngineLimits(seats=5.0, kv=4.0, budget=7.0)
    assert (limits.binding, limits.saturation) == ("kv", 4.0)
    assert limits.stable(3.9)
    assert not limits.stable(4.0)


@pytest.mark.parametrize(("steps", "busy"), [([], 0.5), ([0.1, -1.0], 0.5), ([0.1], 1.5)])
def test_mistakes_are_named(steps: list[float], busy: float) -> None:
    with pytest.raises(ValueError, match="give"):
        FirstToken(steps, busy, 0.0)
