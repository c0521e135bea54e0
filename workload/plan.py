"""The request list of a run: when each request is due, how long it is, and in which phase it falls.

Drawn whole before the run from the run's own seeds. The driver on any target and the simulator take the same list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workload.arrivals import arrival_times
from workload.experiment import RunSpec
from workload.lengths import JointSpec, Lengths, draw_joint, draw_lengths, predict_lengths
from workload.processes.base import ArrivalSpec, Times
from workload.processes.renewal import RenewalSpec, settled

WARMUP, MEASURE, COOLDOWN = "warmup", "measure", "cooldown"


@dataclass(frozen=True)
class RequestPlan:
    """Requests in order of arrival; arrays of one length.

    Attributes:
        intended_s: arrival, seconds from the run's origin, ascending.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens to generate (the cap where ``natural`` outputs may end before).
        predicted_output_tokens: what policies are told.
        phases: ``warmup``, ``measure`` or ``cooldown``. Those of the cooldown are sent only until the last measured
            one has ended.
        measure_start_s, measure_end_s: the window that the measured requests arrive in.
    """

    intended_s: Times
    prompt_tokens: Lengths
    output_tokens: Lengths
    predicted_output_tokens: Lengths
    phases: NDArray[np.str_]
    measure_start_s: float
    measure_end_s: float

    def __len__(self) -> int:
        return len(self.intended_s)

    @property
    def measured(self) -> int:
        """Number of measured requests."""
        return int((self.phases == MEASURE).sum())


def plan_requests(run: RunSpec, rate: float | None = None) -> RequestPlan:
    """The request list of ``run``.

    Args:
        run: an open-loop run.
        rate: requests per second; needed where the run is given by its load (load x measured capacity), and replaces the
            rate of a run that has one.

    Raises:
        ValueError: the run has only a load and no rate is given, or its process has no timeline beforehand.
    """
    arrivals = run.arrivals if rate is None else run.arrivals.at_rate(rate)
    intended, start, end = _timeline(run, arrivals)
    prompt, output = run_lengths(run, len(intended))
    phases = np.full(len(intended), COOLDOWN, dtype="<U8")
    phases[intended < end] = MEASURE
    phases[intended < start] = WARMUP
    return RequestPlan(
        intended_s=intended,
        prompt_tokens=prompt,
        output_tokens=output,
        predicted_output_tokens=predict_lengths(run.predicted_output, output, run.seeds.prediction),
        phases=phases,
        measure_start_s=start,
        measure_end_s=end,
    )


def run_lengths(run: RunSpec, n: int) -> tuple[Lengths, Lengths]:
    """Prompt and output tokens of the first ``n`` requests of ``run``; also for closed loops, in order of issue."""
    if isinstance(run.length_source, JointSpec):
        return draw_joint(run.length_source, n, run.seeds.lengths)
    assert run.prompt is not None
    assert run.output is not None
    return draw_lengths(run.prompt, run.output, n, run.seeds.lengths)


def _timeline(run: RunSpec, arrivals: ArrivalSpec) -> tuple[Times, float, float]:
    """All arrivals up to the cooldown's limit, and the window of the measured ones."""
    seed, warmup, measure = run.seeds.arrivals, run.warmup, run.measure
    arrivals = _with_fixed_count(run, arrivals)
    if warmup.seconds is not None:
        start = warmup.seconds
    else:
        start = _arrival_after(arrivals, warmup.requests or 0, seed) if warmup.requests else 0.0
    if measure.seconds is not None:
        end = start + measure.seconds
    else:
        before = len(arrival_times(arrivals, duration=start, seed=seed))
        end = _arrival_after(arrivals, before + (measure.requests or 0), seed)
    return arrival_times(arrivals, duration=end + run.cooldown.seconds, seed=seed), start, end


def _arrival_after(arrivals: ArrivalSpec, count: int, seed: int) -> float:
    """When arrival ``count`` + 1 comes, so that ``count`` lie before it (a finite process: just after its last one)."""
    times = arrival_times(arrivals, n=count + 1, seed=seed)
    if len(times) <= count:
        return float(np.nextafter(times[-1], np.inf)) if len(times) else 0.0
    return float(times[count])


def _with_fixed_count(run: RunSpec, arrivals: ArrivalSpec) -> ArrivalSpec:
    """``fixed_count`` holds for warm-up and measurement together; the arrivals of the cooldown go on at the same pace."""
    if not (isinstance(arrivals, RenewalSpec) and arrivals.fixed_count):
        return arrivals
    warmup, measure = run.warmup, run.measure
    if warmup.seconds is not None and measure.seconds is not None:
        duration = warmup.seconds + measure.seconds
        return settled(arrivals, round(arrivals.required_rate() * duration), duration, run.seeds.arrivals)
    if warmup.requests is not None and measure.requests is not None:
        return settled(arrivals, warmup.requests + measure.requests, None, run.seeds.arrivals)
    raise ValueError("fixed_count needs warmup and measure both in seconds or both in requests")
