"""The engine in virtual time: its own core, scheduler and block manager on simpy's clock, with a model of the step's time.

Nothing of the engine is written again here; the executor alone is replaced. What comes out is a run with the same tables as
a measured one, so every analysis works on it unchanged. Here are the clients, the network and the router; an engine is a
:class:`analysis.simulation.replica.Replica`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import simpy

from analysis.fit.step_time import StepTimeModel
from analysis.runs import Run
from analysis.simulation.facts import EngineFacts
from analysis.simulation.offers import Arrivals, Offered, offer_again, offer_plan
from analysis.simulation.replica import END_TOKEN, Pace, Replica
from analysis.simulation.routing import Routing, chooser
from analysis.simulation.tables import client_tables, memory_run, summed_gauges
from engine.build import EngineInfo
from engine.config import EngineConfig
from engine.core import TokenEvent
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.simulated import StepTime
from engine.outputs import RequestStats
from engine.scheduler import RequestRefused
from engine.sequence import Request
from workload.loops import Loop, Offer, PlainLoop
from workload.phases import Phases
from workload.plan import RequestPlan
from workload.records import RequestRecord


def simulate_engine(
    source: RequestPlan | Run | Loop | Offered,
    step_time: StepTimeModel | StepTime,
    engine: Run | EngineInfo | EngineConfig | EngineFacts | Mapping[str, Any] | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    noise: bool = True,
    seed: int = 0,
    gap_s: float | None = None,
    arrivals: Arrivals = "measured",
    phases: Phases | None = None,
    cooldown_limit_s: float = 60.0,
    replicas: int = 1,
    routing: Routing = "random",
) -> Run:
    """Run requests through the engine's core in virtual time.

    Args:
        source: a plan; a measured run, whose requests are offered once more; or any loop (a closed one, say), then with
            ``phases``.
        step_time: seconds of a step by its shape. A fitted model brings its gap between steps, its wake-up time and its
            noise.
        engine: whose scheduling facts hold (default: those of the measured run).
        changes: scheduling options to change: seats, budget, blocks, policy (what if).
        noise: resample the model's residuals and gaps; without it every step takes its mean time.
        seed: of that resampling.
        gap_s: seconds between steps, in place of the model's (default 0 where ``step_time`` is no fitted model).
        arrivals: for a measured run, see :func:`analysis.simulation.offers.offer_again`.
        cooldown_limit_s: how long after the measured phase its last requests are waited for; then they are censored.
        replicas: equal engines, each with a line, blocks and noise of its own.
        routing: which of them a request goes to as it is received, see :func:`analysis.simulation.routing.chooser`.

    Returns:
        A run with the tables requests, tokens, steps, batch and gauge. ``meta["simulation"]`` says how it was made, how many
        steps lie outside the fitted shapes, and how long it took. Several replicas have no common steps: their run has
        requests, tokens and one gauge of all of them together.

    Raises:
        ValueError: facts are missing, a plan or loop comes without ``engine``, or the model was fitted under another
            execution than ``engine`` has.
    """
    if engine is None:
        if not isinstance(source, Run):
            raise ValueError("whose engine? a plan or a loop says nothing of seats and blocks: give engine=")
        engine = source
    facts = engine if isinstance(engine, EngineFacts) else EngineFacts.of(engine, changes)
    model = step_time if isinstance(step_time, StepTimeModel) else None
    if model is not None:
        model.require_execution(facts.execution)
    offered = _offered(source, phases, arrivals)
    paces = [Pace(step_time, noise, [seed, index] if index else seed, gap_s) for index in range(replicas)]
    began = time.perf_counter()
    with _collector_paused():
        simulation = _Simulation(facts, offered, paces, routing, np.random.default_rng([seed, 0]), cooldown_limit_s)
        run = simulation.run()
    steps = [table["steps"] for table in simulation.engine_tables]
    run.meta["simulation"] = {
        "noise": noise and model is not None,
        "seed": seed,
        "replicas": replicas,
        "routing": routing if replicas > 1 else None,
        "steps": sum(map(len, steps)),
        "extrapolated_steps": 0 if model is None else sum(int(np.sum(model.extrapolates(table))) for table in steps),
        "wall_s": time.perf_counter() - began,
        "simulated_s": run.meta["window"]["end_s"],
    }
    if isinstance(source, Run):
        run.meta |= {
            name: source.meta[name] for name in ("spec", "study", "experiment", "point") if name in source.meta
        }
    return run


@contextmanager
def _collector_paused() -> Iterator[None]:
    """What a simulation makes it keeps to its end: looking for garbage in it would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _offered(source: RequestPlan | Run | Loop | Offered, phases: Phases | None, arrivals: Arrivals) -> Offered:
    if isinstance(source, Offered):
        return source
    if isinstance(source, RequestPlan):
        return offer_plan(source)
    if isinstance(source, Run):
        return offer_again(source, arrivals)
    if phases is None:
        raise ValueError("a loop says nothing of warm-up and measurement: give phases=")
    return Offered(source, phases)


class _Simulation:
    """One run: clients, network, router and engines on one simpy environment. Two events a step, three a request."""

    def __init__(
        self,
        facts: EngineFacts,
        offered: Offered,
        paces: list[Pace],
        routing: Routing,
        rng: np.random.Generator,
        cooldown_limit_s: float,
    ) -> None:
        env = simpy.Environment()
        self._env = env
        self._facts = facts
        self._offered = offered
        self._loop = offered.loop
        self._loop_reads_tokens = getattr(type(offered.loop), "on_tokens", None) is not PlainLoop.on_tokens
        self._phases = offered.phases
        self._limit_s = offered.phases.measure_end_s + cooldown_limit_s
        tokens = PlaceholderTokens(offered.stops, END_TOKEN, offered.answers)
        self._replicas = [Replica(env, facts, pace, tokens, self._deliver) for pace in paces]
        self._choose = chooser(routing, [replica.present for replica in self._replicas], rng)
        self.engine_tables: list[dict[str, pd.DataFrame]] = []
        self._over = env.event()
        self._due: simpy.Event | None = None
        self._due_s = float("inf")
        self._last_receipt_s = 0.0
        self._open: dict[str, RequestRecord] = {}
        self._measured_open = 0
        self._closed: list[RequestRecord] = []

    def run(self) -> Run:
        env = self._env
        self._plan_next()
        for moment in (self._phases.measure_end_s, self._limit_s):
            if moment < float("inf"):
                self._at(moment, self._end_if_over)
        self._end_if_over()
        env.run(until=self._over)
        end_s = env.now
        self._abort_rest()
        for replica in self._replicas:
            replica.core.record_to(None)
        start_s, measure_end_s = self._phases.window(end_s)
        self.engine_tables = [replica.recorder.tables() for replica in self._replicas]
        tables = client_tables(self._closed)
        if len(self.engine_tables) == 1:
            tables |= self.engine_tables[0]
        else:
            tables["gauge"] = summed_gauges([table["gauge"] for table in self.engine_tables])
        meta = {
            "kind": "simulation",
            "status": "complete",
            "engine": dict(self._facts.scheduling),
            "fingerprints": {"execution": self._facts.execution, "scheduling": dict(self._facts.scheduling)},
            "window": {"measure_start_s": start_s, "measure_end_s": measure_end_s, "end_s": end_s},
        }
        return memory_run(tables, meta)

    def _at(self, moment_s: float, action: Callable[[], None]) -> simpy.Event:
        event = self._env.timeout(max(0.0, moment_s - self._env.now))
        event.callbacks.append(lambda _: action())
        return event

    def _plan_next(self) -> None:
        """Be there when the loop's next request is due; an earlier plan that is later than that is void."""
        due_s = self._loop.next_due()
        if due_s < self._due_s:
            self._due_s = due_s
            event = self._due = self._env.timeout(max(0.0, due_s - self._env.now))
            event.callbacks.append(self._send_due)

    def _send_due(self, event: simpy.Event) -> None:
        if event is not self._due or self._over.triggered:
            return
        self._due, self._due_s = None, float("inf")
        while self._loop.next_due() <= self._env.now:
            self._send(self._loop.take())
        self._plan_next()

    def _send(self, offer: Offer) -> None:
        request, now_s = offer.request, self._env.now
        record = RequestRecord(
            request_id=request.request_id,
            phase=self._phases.phase_of(offer.intended_s),
            intended_s=offer.intended_s,
            prompt_tokens=len(request.prompt_token_ids),
            max_tokens=request.params.max_tokens,
            predicted_output_tokens=request.predicted_output_tokens,
            session_id=offer.session_id,
            turn=offer.turn,
            priority=request.priority,
            sent_s=now_s,
        )
        self._open[request.request_id] = record
        self._measured_open += record.phase == "measure"
        transit_s = self._offered.transit_in.get(request.request_id, self._offered.mean_transit_in_s)
        # the connection keeps the order of what is sent
        receipt_s = self._last_receipt_s = max(self._last_receipt_s, now_s + transit_s)
        if receipt_s > now_s:
            self._at(receipt_s, lambda: self._receive(request))
        else:
            self._receive(request)

    def _receive(self, request: Request) -> None:
        if self._over.triggered:
            return
        try:
            self._replicas[self._choose()].add(request)
        except RequestRefused as refusal:
            record = self._open[request.request_id]
            record.finish_reason, record.error = "refused", str(refusal)
            self._tell_client(record)

    def _deliver(self, events: list[TokenEvent]) -> None:
        if not events:
            return
        seen_s = self._env.now + self._offered.transit_out_s
        first_seen_s = seen_s + self._offered.first_out_s
        is_over = self._over.triggered  # as the message is sent: a client reads a message to its end
        open_requests = self._open
        for seq, token_id in events:
            record = open_requests.get(seq.request.request_id)
            if record is None or is_over:
                if record is not None and seq.finish_reason is not None:
                    record.stats = RequestStats.of(seq)
                continue
            if token_id is not None:
                stamps = record.token_s
                if stamps:  # a first token may be seen later than its step, no token before another
                    stamps.append(seen_s if seen_s > stamps[-1] else stamps[-1])
                else:
                    stamps.append(seen_s if seq.finish_reason is not None else first_seen_s)
                if self._loop_reads_tokens:
                    self._loop.on_tokens(record.request_id, (token_id,))
            if seq.finish_reason is not None:
                record.finish_reason = seq.finish_reason
                record.stats = RequestStats.of(seq)
                self._tell_client(record)

    def _tell_client(self, record: RequestRecord) -> None:
        record.finished_s = self._env.now + self._offered.transit_out_s
        if self._offered.transit_out_s:
            self._at(record.finished_s, lambda: self._close(record))
        else:
            self._close(record)

    def _close(self, record: RequestRecord) -> None:
        del self._open[record.request_id]
        self._closed.append(record)
        self._measured_open -= record.phase == "measure"
        self._loop.on_end(record.request_id, self._env.now)
        self._plan_next()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._over.triggered:
            return
        now_s = self._env.now
        used_up = self._loop.exhausted and not self._open
        measured = now_s >= self._phases.measure_end_s and (not self._measured_open or now_s >= self._limit_s)
        if used_up or measured:
            self._over.succeed()

    def _abort_rest(self) -> None:
        """What is left over is censored: it has the engine's stamps up to here and no end."""
        for replica in self._replicas:
            for request_id in self._open:
                replica.abort(request_id)
        while any(replica.present() for replica in self._replicas):
            self._env.step()
        for record in self._open.values():
            if record.stats is not None and record.finish_reason is not None and record.finished_s > self._env.now:
                record.finish_reason = None
            self._closed.append(record)
