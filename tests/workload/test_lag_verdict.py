"""The verdict on the generator's lag: scipy's exact binomial interval as oracle, and how often it is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from workload.records import LATE_LIMIT, lag_verdict, late_bounds

LATE_S, ON_TIME_S = 2e-3, 1e-4


def verdict(late: NDArray[np.bool_]) -> str:
    return str(lag_verdict(np.where(late, LATE_S, ON_TIME_S).tolist())["verdict"]).split(":")[0]


def two_state_chain(rng: np.random.Generator, n: int, share: float, spell: float) -> NDArray[np.bool_]:
    """Late sends that come in spells of ``spell`` on average and are ``share`` of all in the long run."""
    leave = 1 / spell
    enter = leave * share / (1 - share)
    state, draws = np.empty(n, dtype=bool), rng.random(n)
    state[0] = draws[0] < share
    for i in range(1, n):
        state[i] = draws[i] >= leave if state[i - 1] else draws[i] < enter
    return state


@pytest.mark.parametrize(("late", "sends"), [(0, 141), (1, 141), (3, 470), (16, 472), (20, 20), (250, 5000)])
def test_the_bounds_are_scipys_exact_binomial_ones(late: int, sends: int) -> None:
    exact = stats.binomtest(late, sends).proportion_ci(0.90, method="exact")  # 5 % outside on either side
    assert late_bounds(late, sends) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_what_is_known_for_sure_and_what_is_not() -> None:
    assert verdict(np.zeros(299, dtype=bool)) == "kept up"  # 0.99^299 < 5 %
    assert verdict(np.zeros(298, dtype=bool)) == "undecided"
    assert verdict(np.ones(20, dtype=bool)) == "fell behind"
    assert verdict(np.arange(200) % 10 == 0) == "fell behind"
    assert verdict(np.arange(2000) % 500 == 0) == "kept up"
    assert lag_verdict([])["verdict"] == "nothing was sent"


def test_one_pause_that_delays_ten_sends_is_not_ten_pieces_of_evidence() -> None:
    late = np.zeros(300, dtype=bool)
    late[100:110] = True
    assert verdict(late) == "undecided"
    assert verdict(np.random.default_rng(1).permutation(late)) == "fell behind"


@pytest.mark.parametrize(("share", "wrong"), [(LATE_LIMIT, "fell behind"), (LATE_LIMIT + 1e-4, "kept up")])
@pytest.mark.parametrize("n", [150, 300, 1000])
def test_at_the_limit_each_verdict_is_given_in_at_most_five_percent_of_runs(share: float, wrong: str, n: int) -> None:
    rng = np.random.default_rng(7)
    given = sum(verdict(rng.random(n) < share) == wrong for _ in range(600))
    assert given <= stats.binom.ppf(0.999, 600, 0.05)


def test_late_sends_in_spells_raise_no_more_false_alarms() -> None:
    rng = np.random.default_rng(8)
    given = sum(verdict(two_state_chain(rng, 1000, LATE_LIMIT, 3.0)) == "fell behind" for _ in range(200))
    assert given <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_generator_late_in_five_percent_of_sends_is_found() -> None:
    rng = np.random.default_rng(9)
    assert sum(verdict(rng.random(300) < 0.05) == "fell behind" for _ in range(200)) >= 190
