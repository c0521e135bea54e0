"""Several simulated engines behind a router against textbook stations; sessions offered again as sessions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.runs import Run
from analysis.simulation import Servers, simulate_engine, simulate_queue
from analysis.simulation.routing import ROUTINGS, Routing
from analysis.simulation.schedule import replay_schedule
from engine.config import EngineConfig
from engine.executors.step_time import LinearStepTime
from workload.loops import Offer, OpenLoop, RequestList
from workload.phases import Phases
from workload.prompts import TokenSource
from workload.sessions import SessionLoop, SessionPlan

SEED = 5


def config(**options: object) -> EngineConfig:
    defaults = {"max_num_batched_tokens": 512, "num_kv_blocks": 512, "block_size": 16, "max_model_len": 2048}
    return EngineConfig(**{**defaults, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_engines_of_one_seat_are_servers_with_a_line_each(routing: Routing) -> None:
    n, price, replicas = 1500, 1e-3, 3
    rng = np.random.default_rng(1)
    prompts = rng.geometric(1 / 60, size=n).clip(max=500)
    times = np.cumsum(rng.exponential(0.06 / replicas / 0.85, size=n))
    # one token each, so that a request is one step of as many milliseconds as its prompt has tokens
    requests = RequestList([np.arange(size, dtype=np.int32) for size in prompts], np.ones(n, dtype=np.int64))
    run = simulate_engine(
        OpenLoop(times, requests),
        LinearStepTime(prefill_tokens=price),
        config(max_num_seqs=1, enable_prefix_caching=False),
        phases=Phases(0.0, 1e9),
        replicas=replicas,
        routing=routing,
        seed=SEED,
    )
    queue = simulate_queue(
        times,
        price * prompts,
        Servers(1),
        replicas=replicas,
        routing=routing,
        seed=[SEED, 0],  # type: ignore[arg-type]
    )
    rows = run.requests.set_index("request_id").loc[queue.requests["request_id"]]
    np.testing.assert_allclose(rows["done_s"], queue.requests["done_s"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(rows["wait_total"], queue.requests["wait_total"], rtol=0, atol=1e-9)
    gauge = run.gauge
    present = gauge[["inbox", "waiting", "running"]].sum(axis=1).to_numpy()[:-1]
    sojourns = (rows["done_s"] - rows["received_s"]).sum()
    assert float(present @ np.diff(gauge["t_s"])) == pytest.approx(sojourns, rel=1e-9)
    assert not run.recorded("steps")
    assert run.meta["simulation"]["steps"] == n


def test_one_replica_is_the_engine_itself_whatever_the_routing() -> None:
    rng = np.random.default_rng(2)
    requests = RequestList([np.arange(size, dtype=np.int32) for size in rng.integers(4, 60, size=60)], np.full(60, 9))
    times = np.cumsum(rng.exponential(0.05, size=60))
    step = LinearStepTime(base_s=5e-3, decode_seqs=5e-4)
    alone, routed = (
        simulate_engine(OpenLoop(times, requests), step, config(), phases=Phases(0.0, 3.0), **options)  # type: ignore[arg-type]
        for options in ({}, {"replicas": 1, "routing": "jsq"})
    )
    for name in ("requests", "steps", "batch", "gauge"):
        pd.testing.assert_frame_equal(getattr(alone, name), getattr(routed, name))


def test_a_router_without_engines_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas is 0"):
        simulate_engine(
            OpenLoop(np.empty(0), RequestList([], [])), lambda _: 1.0, config(), phases=Phases(0, 1), replicas=0
        )


class _Recorded(SessionLoop):
    """Sessions whose prompts are kept."""

    prompts: dict[str, list[int]]

    def take(self) -> Offer:
        offer = super().take()
        self.prompts[offer.request.request_id] = offer.request.prompt_token_ids
        return offer


def session_run() -> Run:
    rng = np.random.default_rng(3)
    first = np.concatenate([[0], np.cumsum(rng.integers(1, 5, size=25))])
    turns = int(first[-1])
    think = rng.exponential(0.2, size=turns)
    think[first[:-1]] = 0.0
    starts = np.cumsum(rng.exponential(0.1, size=25))
    plan = SessionPlan(starts, first, rng.integers(10, 40, size=turns), rng.integers(3, 30, size=turns), think)
    loop = _Recorded(plan, TokenSource(30_000, seed=4), max_model_len=2048)
    loop.prompts = {}
    run = simulate_engine(loop, STEP, config(max_num_seqs=4), phases=Phases(0.0, 1e9))
    kept = pd.DataFrame({"request_id": list(loop.prompts), "token_ids": list(loop.prompts.values())})
    return Run.from_tables(run.requests, run.steps, run.batch, run.gauge, run.tokens, kept, run.meta)


STEP = LinearStepTime(base_s=5e-3, decode_seqs=5e-4, prefill_tokens=1e-4)


def test_the_schedule_of_sessions_is_replayed_with_the_answers_that_later_turns_hold() -> None:
    run = session_run()
    assert (run.requests["cached_tokens"] > 30).any()  # part of an answer, not of a prompt alone
    compared = replay_schedule(run)
    assert compared.equal, str(compared)


def test_sessions_offered_again_wait_for_the_simulated_answers() -> None:
    run = session_run()
    again = simulate_engine(run, STEP)
    columns = ["request_id", "intended_s", "finished_s", "cached_tokens", "session_id", "turn"]
    left, right = (each.requests.sort_values("request_id")[columns].reset_index(drop=True) for each in (run, again))
    pd.testing.assert_frame_equal(left, right, check_exact=False, rtol=0, atol=1e-9)

    slow = LinearStepTime(base_s=20e-3, decode_seqs=5e-4, prefill_tokens=1e-4)
    rows = simulate_engine(run, slow).requests.set_index("request_id")
    was = run.requests.set_index("request_id")
    for name, row in rows[rows["turn"] > 0].iterrows():
        before = f"{str(name).split('.')[0]}.{int(row['turn']) - 1}"
        pause = was.loc[name, "intended_s"] - was.loc[before, "finished_s"]
        assert row["intended_s"] == pytest.approx(rows.loc[before, "finished_s"] + pause, abs=1e-9)


def test_requests_offered_again_at_their_intended_moments_have_no_lag() -> None:
    rng = np.random.default_rng(6)
    requests = RequestList([np.arange(size, dtype=np.int32) for size in rng.integers(4, 60, size=40)], np.full(40, 5))
    times = np.cumsum(rng.exponential(0.05, size=40))
    run = simulate_engine(OpenLoop(times, requests), STEP, config(enable_prefix_caching=False), phases=Phases(0.0, 1e9))
    late = run.requests.assign(sent_s=run.requests["sent_s"] + rng.uniform(0.0, 0.3, size=40))
    again = simulate_engine(Run.from_tables(late, meta=run.meta), STEP, arrivals="intended")
    assert (again.requests["lag"].abs() < 1e-12).all()
    np.testing.assert_allclose(np.sort(again.requests["sent_s"]), times)
