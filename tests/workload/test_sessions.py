"""Closed loops and sessions: no timeline beforehand, but everything that does not depend on answers is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from workload.arrivals import arrival_times, parse_arrivals
from workload.durations import ThinkTimes, parse_duration
from workload.experiment import load_study
from workload.lengths import mean_length
from workload.plan import plan_requests
from workload.prompts import TokenSource
from workload.sessions import SessionLoop, SessionPlan, plan_sessions

STUDY = """\
version: 1
model: m
experiments:
  - name: chat
    arrivals: {process: sessions, rate: 20, turns: {dist: geometric, mean: 4}, think: {dist: exponential, mean: 2}}
    prompt: {dist: uniform, min: 5, max: 15}
    output: 8
    warmup: {seconds: 10}
    measure: {seconds: 400}
    cooldown: {seconds: 10}
  - name: loop
    arrivals: {process: closed, clients: 8, think: 0.5}
    prompt: 5
    output: 8
    measure: {seconds: 40}
"""


@pytest.fixture
def runs(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "study.yaml").write_text(STUDY)
    return load_study(tmp_path / "study.yaml").runs


def test_processes_that_wait_for_answers_have_no_times(runs) -> None:  # type: ignore[no-untyped-def]
    for spec in ({"process": "closed", "clients": 3}, {"process": "sessions", "rate": 1, "turns": 3}):
        with pytest.raises(ValueError, match=r"no times beforehand.*poisson"):
            arrival_times(spec, n=3)
    with pytest.raises(ValueError, match="no times beforehand"):
        plan_requests(runs[1])
    assert runs[1].point == "clients=8"
    assert parse_arrivals({"process": "closed", "clients": 3, "think": 2}).think.mean_s == 2
    with pytest.raises(ValueError, match=r"think\.dist: found 'exp'; did you mean 'exponential'"):
        parse_arrivals({"process": "closed", "clients": 3, "think": {"dist": "exp"}})
    with pytest.raises(ValueError, match="clients: found 0"):
        parse_arrivals({"process": "closed", "clients": 0})


def test_sessions_offer_their_rate_of_turns(runs) -> None:  # type: ignore[no-untyped-def]
    plan = plan_sessions(runs[0])
    turns = np.diff(plan.first_turn)
    assert mean_length({"dist": "geometric", "mean": 4}) == pytest.approx(4)
    assert stats.ttest_1samp(turns, 4).pvalue > 0.001
    assert abs(len(plan) - 20 / 4 * 420) < 4 * math.sqrt(20 / 4 * 420)
    assert (plan.think_s[plan.first_turn[:-1]] == 0).all()
    later = np.setdiff1d(np.arange(len(plan.think_s)), plan.first_turn[:-1])
    assert stats.kstest(plan.think_s[later], stats.expon(scale=2).cdf).pvalue > 0.001
    again = plan_sessions(runs[0])
    assert np.array_equal(plan.starts_s, again.starts_s)
    assert np.array_equal(plan.new_tokens, again.new_tokens)


def loop_of(max_model_len: int = 1000) -> SessionLoop:
    plan = SessionPlan(
        starts_s=np.array([0.0, 1.0]),
        first_turn=np.array([0, 3, 4]),
        new_tokens=np.array([5, 6, 7, 4]),
        output_tokens=np.array([2, 2, 2, 2]),
        think_s=np.array([0.0, 0.5, 0.25, 0.0]),
    )
    return SessionLoop(plan, TokenSource(100, seed=3), max_model_len=max_model_len)


def test_the_history_becomes_the_prompt_token_by_token() -> None:
    loop = loop_of()
    first = loop.take()
    assert (first.intended_s, first.session_id, first.turn) == (0.0, "session-0", 0)
    assert len(first.request.prompt_token_ids) == 5
    assert loop.next_due() == 1.0
    loop.on_tokens(first.request.request_id, (7,))
    loop.on_tokens(first.request.request_id, (8,))
    loop.on_end(first.request.request_id, 0.3)
    second = loop.take()
    assert second.intended_s == pytest.approx(0.8)  # end of the turn before + think time
    assert second.request.prompt_token_ids[:7] == [*first.request.prompt_token_ids, 7, 8]
    assert len(second.request.prompt_token_ids) == 5 + 2 + 6
    other = loop.take()
    assert (other.intended_s, other.session_id) == (1.0, "session-1")
    assert math.isinf(loop.next_due())
    assert not loop.exhausted  # answers are still to come
    loop.on_tokens(second.request.request_id, (1, 2))
    loop.on_end(second.request.request_id, 2.0)
    third = loop.take()
    assert third.intended_s == 2.25
    for offer in (third, other):
        loop.on_end(offer.request.request_id, 3.0)
    assert loop.exhausted
    assert loop.overflowed_turns == 0
    assert len(first.request.prompt_token_ids) == 5  # the first request was not changed afterwards


def test_turns_beyond_the_context_are_counted_and_not_sent() -> None:
    loop = loop_of(max_model_len=14)
    first = loop.take()
    loop.on_tokens(first.request.request_id, (7, 8))
    loop.on_end(first.request.request_id, 0.3)  # 7 known + 6 new + 2 out = 15 > 14
    assert (loop.overflowed_sessions, loop.overflowed_turns) == (1, 2)
    loop.on_end(loop.take().request.request_id, 2.0)
    assert loop.exhausted
    never = loop_of(max_model_len=6)
    assert never.take().session_id == "session-1"
    assert (never.overflowed_sessions, never.overflowed_turns) == (1, 3)


def test_think_times_belong_to_the_client() -> None:
    law = parse_duration({"dist": "exponential", "mean": 2})
    one, other = ThinkTimes(law, 5), ThinkTimes(law, 5)
    first = [one(0), one(0), one(1), one(0)]
    second = [other(1), other(0), other(0), other(0)]
    assert (first[0], first[1], first[3], first[2]) == (second[1], second[2], second[3], second[0])
    assert one(2) != one(3)


@pytest.mark.parametrize(
    "law",
    [
        1.5,
        {"dist": "uniform", "min": 1, "max": 2},
        {"dist": "exponential", "mean": 1.5},
        {"dist": "lognormal", "mean": 1.5, "cv": 0.5},
    ],
    ids=str,
)
def test_durations_have_the_mean_they_state(law) -> None:  # type: ignore[no-untyped-def]
    parsed = parse_duration(law)
    values = parsed.draw(20_000, np.random.default_rng(1))
    assert parsed.mean_s == 1.5
    assert abs(values.mean() - 1.5) <= 4 * values.std() / math.sqrt(20_000)
