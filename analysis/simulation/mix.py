"""A mix of requests to simulate with: lengths resampled from measured ones, offered at a rate or as a permanent backlog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.runs import Run
from analysis.simulation.engine import simulate_engine
from analysis.simulation.facts import EngineFacts
from analysis.simulation.offers import FixedRequests, Offered, ReplayLoop, UnsharedPrompts
from engine.executors.simulated import StepTime
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from workload.loops import ClosedLoop, Offer
from workload.phases import Phases

Ints = NDArray[np.int64]

CLIENTS_A_SEAT = 2  # of the backlog under which capacity is defined


@dataclass(frozen=True)
class RequestMix:
    """Pairs of prompt and output lengths (tokens), and what client and network add (s), all measured."""

    prompt_tokens: Ints
    output_tokens: Ints
    transit_in_s: float = 0.0
    transit_out_s: float = 0.0
    first_out_s: float = 0.0

    @classmethod
    def of(cls, runs: Sequence[Run]) -> RequestMix:
        """The requests that ended normally in ``runs``.

        Raises:
            ValueError: there is none.
        """
        parts = [run.requests[run.requests["finish_reason"].isin(["stop", "length"])] for run in runs]
        if not sum(len(part) for part in parts):
            raise ValueError("no request ended normally in the runs that the lengths should come from")

        def mean(later: str, earlier: str) -> float:
            values = np.concatenate([(part[later] - part[earlier]).to_numpy(dtype=float) for part in parts])
            return max(0.0, float(np.nanmean(values))) if np.isfinite(values).any() else 0.0

        out = mean("finished_s", "done_s")
        return cls(
            np.concatenate([part["prompt_tokens"].to_numpy(dtype=np.int64) for part in parts]),
            np.concatenate([part["output_tokens"].to_numpy(dtype=np.int64) for part in parts]),
            mean("received_s", "sent_s"),
            out,
            max(0.0, mean("first_token_s", "emitted_first_s") - out),
        )

    def requests(self, n: int, seed: int) -> list[Request]:
        """``n`` requests whose pair of lengths is drawn with replacement; no two share a prefix."""
        picks = np.random.default_rng([seed, 1]).integers(len(self.prompt_tokens), size=n)
        prompts = UnsharedPrompts()
        pairs = zip(self.prompt_tokens[picks].tolist(), self.output_tokens[picks].tolist(), strict=True)
        return [
            Request(str(i), prompts.take(prompt), SamplingParams(0.0, max_tokens=output), 0, output)
            for i, (prompt, output) in enumerate(pairs)
        ]

    def open_loop(self, rate: float, n: int, warmup: int, seed: int) -> Offered:
        """``n`` measured requests behind ``warmup`` others, Poisson at ``rate`` a second.

        The same seed gives the same requests and the same arrivals but for their scale.
        """
        total = warmup + n
        times = np.cumsum(np.random.default_rng([seed, 2]).gamma(1.0, 1.0, size=total) / rate)
        start_s = float(times[warmup - 1]) if warmup else 0.0
        sends = [
            (at, Offer(at, request)) for at, request in zip(times.tolist(), self.requests(total, seed), strict=True)
        ]
        phases = Phases(start_s, float(times[-1]))
        return Offered(ReplayLoop(sends), phases, {}, {}, self.transit_in_s, self.transit_out_s, self.first_out_s)

    def backlog(self, seats: int, measure_s: float, warmup_s: float, seed: int) -> Offered:
        """Two clients a seat who never think: somebody always waits."""
        loop = ClosedLoop(CLIENTS_A_SEAT * seats, FixedRequests(self.requests(5000, seed)))
        phases = Phases(warmup_s, warmup_s + measure_s)
        return Offered(loop, phases, {}, {}, self.transit_in_s, self.transit_out_s, self.first_out_s)


def simulated_capacity(
    mix: RequestMix,
    step_time: StepTimeModel | StepTime,
    engine: EngineFacts | Run | Mapping[str, object],
    measure_s: float = 60.0,
    seed: int = 0,
) -> float:
    """Completions a second under a permanent backlog, in virtual time."""
    facts = engine if isinstance(engine, EngineFacts) else EngineFacts.of(engine)
    warmup_s = 0.1 * measure_s
    offered = mix.backlog(int(facts.scheduling["max_num_seqs"]), measure_s, warmup_s, seed)
    run = simulate_engine(offered, step_time, facts, seed=seed, cooldown_limit_s=0.0)
    done = run.requests["done_s"].to_numpy(dtype=float)
    return float(np.count_nonzero((done >= warmup_s) & (done < warmup_s + measure_s))) / measure_s
