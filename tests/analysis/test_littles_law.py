"""Little's law closes on a correct run, breaks on each of the four ways to spoil one, and its identity is an identity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.areas import step_integral
from analysis.intervals import Estimate, TooShort
from analysis.littles_law import by_subwindow, count, finite_window, littles_law
from analysis.runs import Run

Engine = Callable[..., Run]


def test_finite_window_by_hand() -> None:
    # 0-4 inside from before, 3-5 within, 6-nan still there, 9-12 beyond the window [2, 8]
    window = finite_window([0.0, 3.0, 6.0, 9.0], [4.0, 5.0, np.nan, 12.0], 2.0, 8.0)
    assert window.area == pytest.approx(2 + 2 + 2)
    assert window.n == 3
    assert (window.L, window.lam, window.W) == pytest.approx((1.0, 0.5, 2.0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50) | st.just(float("nan"))), min_size=1, max_size=30),
    st.floats(0, 60),
    st.floats(1, 60),
)
def test_the_identity_holds_for_any_set_of_intervals(
    rows: list[tuple[float, float]], start: float, span: float
) -> None:
    arrivals = np.array([a for a, _ in rows])
    departures = np.array([a + d for a, d in rows])
    window = finite_window(arrivals, departures, start, start + span)
    if window.n:
        assert pytest.approx(window.lam * window.W) == window.L
    # the same area by counting heads on a fine grid of exact change points
    ends = np.nan_to_num(departures, nan=np.inf)
    points = np.unique(np.clip(np.concatenate([arrivals, ends, [start, start + span]]), start, start + span))
    middle = (points[1:] + points[:-1]) / 2
    heads = ((arrivals[:, None] <= middle) & (ends[:, None] > middle)).sum(axis=0)
    assert window.area == pytest.approx(float(np.sum(heads * np.diff(points))), abs=1e-9)


def test_finite_window_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="1 departures precede"):
        finite_window([1.0], [0.0], 0, 2)
    with pytest.raises(ValueError, match="must end after it starts"):
        finite_window([1.0], [2.0], 2, 2)
    with pytest.raises(ValueError, match="arrivals are nan"):
        finite_window([np.nan], [2.0], 0, 2)
    with pytest.raises(ValueError, match="two equal series"):
        finite_window([1.0, 2.0], [2.0], 0, 2)


def test_step_integral_by_hand() -> None:
    t, value = np.array([1.0, 2.0, 2.0, 4.0]), np.array([3.0, 9.0, 1.0, 0.0])
    at = np.array([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0])
    np.testing.assert_allclose(step_integral(t, value, at), [0, 0, 1.5, 3, 4, 5, 5])
    assert step_integral(np.array([]), np.array([]), at).tolist() == [0.0] * 7


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("edge", [0.0, 0.3])
def test_a_correct_run_closes_over_any_window(batch_engine: Engine, seed: int, edge: float) -> None:
    run = batch_engine(seed=seed)
    last = run.requests["finished_s"].max()
    law = littles_law(run, edge * last, (1 - edge) * last)
    assert law.verdict == "closed"
    assert law.closure.closed
    assert abs(law.closure.remainder_share) < 1e-9
    inside = law.closure.stages
    assert law.closure.client_area == pytest.approx(sum(inside.values()))
    assert inside["transit_in"] > 0 < inside["transit_out"]
    assert inside["lag"] > 0 < inside["running"]
    parts = by_subwindow(run, 7, edge * last, (1 - edge) * last)
    assert parts["gauge_area"].sum() == pytest.approx(law.closure.gauge_area)
    assert parts["client_area"].sum() == pytest.approx(law.closure.client_area)
    assert parts["share"].abs().max() < 1e-6


def test_requests_still_inside_refused_or_never_sent_are_counted(batch_engine: Engine) -> None:
    run = batch_engine(seed=3, load=1.4, stop_at=60.0, refuse=0.1)
    counts = count(run.requests)
    assert counts.in_flight > 10 < counts.refused
    assert counts.agree
    law = littles_law(run, 0.0, 60.0)
    assert law.verdict == "closed"
    assert np.isinf(law.W)  # nobody can know yet
    assert isinstance(law.sampling.W, TooShort)


def test_closure_breaks_when_two_percent_of_the_rows_are_dropped(batch_engine: Engine) -> None:
    for seed in range(5):
        run = batch_engine(seed=seed)
        kept = run.requests.drop(run.requests.sample(frac=0.02, random_state=seed).index)
        assert "remainder -" in littles_law(Run.from_tables(kept, gauge=run.gauge)).verdict


@pytest.mark.parametrize("shift", [0.02, -0.02])
@pytest.mark.parametrize("moved", ["client", "engine stamps and gauge", "gauge"])
def test_closure_breaks_when_one_clock_is_moved_by_20_ms(batch_engine: Engine, moved: str, shift: float) -> None:
    for seed in range(3):
        run = batch_engine(seed=seed)
        requests, gauge = run.requests.copy(), run.gauge.copy()
        if moved == "client":
            for name in ("intended_s", "sent_s", "finished_s"):
                requests[name] += shift
        elif moved == "gauge":
            gauge["t_s"] += shift
        else:
            gauge["t_s"] += shift
            for name in ("received_s", "scheduled_s", "done_s"):
                requests[name] += shift
        verdict = littles_law(Run.from_tables(requests, gauge=gauge)).verdict
        assert verdict.startswith("open"), (moved, shift)
        assert "clocks" in verdict or "leave the gauge" in verdict


@pytest.mark.parametrize("kind", ["no inbox", "preempted twice"])
def test_closure_breaks_when_the_gauge_counts_wrongly(batch_engine: Engine, kind: str) -> None:
    for seed in range(5):
        law = littles_law(batch_engine(seed=seed, gauge_kind=kind))
        assert law.verdict.startswith("open"), law.closure
        assert "remainder" in law.verdict or "leave the gauge" in law.verdict


@pytest.mark.parametrize(
    ("column", "value"),
    [("finish_reason", None), ("finished_s", np.nan), ("finish_reason", "gone"), ("request_id", "r1")],
)
def test_closure_breaks_when_a_row_contradicts_itself(batch_engine: Engine, column: str, value: object) -> None:
    run = batch_engine(seed=1, n=100)
    requests = run.requests.astype({"finish_reason": object, "request_id": object})
    requests.loc[40, column] = value
    assert "counts disagree" in littles_law(Run.from_tables(requests, gauge=run.gauge)).verdict


def test_an_abort_that_the_engine_notices_late_still_closes() -> None:
    requests = pd.DataFrame(
        {
            "request_id": ["a", "b"],
            "intended_s": [0.0, 1.0],
            "sent_s": [0.0, 1.0],
            "received_s": [0.0, 1.0],
            "done_s": [5.0, 3.0],
            "finished_s": [2.0, 3.0],
            "finish_reason": ["timeout", "stop"],
        }
    )
    gauge = pd.DataFrame({"t_s": [0.0, 1, 3, 5], "inbox": 0, "waiting": 0, "running": [1, 2, 1, 0]})
    law = littles_law(Run.from_tables(requests, gauge=gauge), 0.0, 6.0)
    assert law.verdict == "closed"
    assert law.closure.stages["transit_out"] == pytest.approx(-3.0)


def test_without_a_gauge_closure_is_not_testable(batch_engine: Engine) -> None:
    run = batch_engine(n=50)
    law = littles_law(Run.from_tables(run.requests))
    assert law.verdict.startswith("not testable")
    assert law.identity.L == law.L > 0
    assert law.sampling.verdict.startswith("not testable")


def test_sampling_says_too_short_or_agrees(batch_engine: Engine) -> None:
    short = littles_law(batch_engine(seed=2, n=200))
    assert short.sampling.verdict.startswith("too short")
    long = littles_law(batch_engine(seed=2, n=6000, load=0.4))
    assert long.sampling.verdict == "agrees"
    assert isinstance(long.sampling.L, Estimate)
    assert long.sampling.L.contains(long.L)
    assert pytest.approx(long.lam * long.W, rel=0.02) == long.L


@pytest.mark.parametrize(("late", "verdict"), [(0.0, "closed"), (0.015, "too short"), (0.05, "open")])
def test_one_pause_in_a_tiny_run_is_no_broken_law(batch_engine: Engine, late: float, verdict: str) -> None:
    run = batch_engine(seed=1, n=10)
    shrink = 1.0 / littles_law(run).closure.gauge_area  # to one request-second in all, in which 0.5 % is 5 ms
    requests, gauge = run.requests.copy(), run.gauge.copy()
    for name in [column for column in requests.columns if column.endswith("_s")] + ["cap_wait", "wait_total"]:
        requests[name] *= shrink
    gauge["t_s"] *= shrink
    gauge.loc[gauge.index[-1], "t_s"] += late  # the last departure is read after a pause
    law = littles_law(Run.from_tables(requests, gauge=gauge), 0.0, float(gauge["t_s"].max()) + 0.1)
    assert law.verdict.split(":")[0] == verdict
    # nobody can drop a request unnoticed, however short the run
    dropped = littles_law(Run.from_tables(requests.iloc[1:], gauge=gauge), 0.0, float(gauge["t_s"].max()) + 0.1)
    assert dropped.verdict.startswith("open")
