"""The request list of a run: when each request is due, how long it is, and in which phase it falls.

Drawn whole before the run from the run's own seeds. The driver on any target and the simulator take the same list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workload.arrivals import arrival_times
from workload.experiment import RunSpec
from workload.lengths import JointSpec, Lengths, TraceLengths, draw_joint, draw_lengths, predict_lengths
from workload.processes.base import ArrivalSpec, Times, collect
from workload.processes.renewal import RenewalSpec, settled
from workload.processes.trace import Trace

WARMUP, MEASURE, COOLDOWN = "warmup", "measure", "cooldown"


@dataclass(frozen=True)
class RequestPlan:
    """Requests in order of arrival; arrays of one length.

    Attributes:
        intended_s: arrival, seconds from the run's origin, ascending.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens to generate (the cap where ``natural`` outputs may end before).
        predicted_output_tokens: what policies are told.
        phases: ``warmup``, ``measure`` or ``cooldown``. Those of the cooldown are sent only until the last measured one has
            ended.
        measure_start_s, measure_end_s: the window that the measured requests arrive in.
        hash_ids: prefix block ids of each request, where the trace has them.
        notes: what was decided on the way, in words.
    """

    intended_s: Times
    prompt_tokens: Lengths
    output_tokens: Lengths
    predicted_output_tokens: Lengths
    phases: NDArray[np.str_]
    measure_start_s: float
    measure_end_s: float
    hash_ids: NDArray[np.object_] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.intended_s)

    @property
    def measured(self) -> int:
        """Number of measured requests."""
        return int((self.phases == MEASURE).sum())

    def fitted(self, max_model_len: int) -> RequestPlan:
        """The plan with every request cut to a model's limit of ``max_model_len`` tokens, prompt and output together.

        A prompt keeps at most ``max_model_len`` - 1 tokens, the output what is left then. The number of requests cut is
        noted.
        """
        if max_model_len < 2:
            raise ValueError(f"max_model_len is {max_model_len}; a prompt and an output need at least 2 tokens")
        prompt = np.minimum(self.prompt_tokens, max_model_len - 1)
        output = np.minimum(self.output_tokens, max_model_len - prompt)
        cut = int(((prompt < self.prompt_tokens) | (output < self.output_tokens)).sum())
        if not cut:
            return self
        note = f"{cut} of {len(self)} requests cut to the model's limit of {max_model_len} tokens"
        predicted = np.minimum(self.predicted_output_tokens, max_model_len - prompt)
        return replace(
            self,
            prompt_tokens=prompt,
            output_tokens=output,
            predicted_output_tokens=predicted,
            notes=(*self.notes, note),
        )


def plan_requests(run: RunSpec, rate: float | None = None) -> RequestPlan:
    """The request list of ``run``.

    Args:
        run: an open-loop run.
        rate: requests per second; needed where the run is given by its load (load x measured capacity), and replaces the
            rate of a run that has one.

    Raises:
        ValueError: the run has only a load and no rate is given, its process has no timeline beforehand, or its trace ends
            before the measurement begins.
    """
    arrivals = run.arrivals if rate is None else run.arrivals.at_rate(rate)
    arrivals = _with_fixed_count(run, arrivals)
    table = arrivals.table(run.seeds.arrivals, _scale(run)) if isinstance(arrivals, Trace) else None
    intended, start, end = _timeline(run, arrivals, table)
    prompt, output = _lengths(run, len(intended), table)
    phases = np.full(len(intended), COOLDOWN, dtype="<U8")
    phases[intended < end] = MEASURE
    phases[intended < start] = WARMUP
    if not (phases == MEASURE).any():
        raise ValueError(
            f"{run.run_dir}: no arrivals in the measured window [{start:g}, {end:g}) s; "
            f"{len(intended)} arrivals in all. A longer measure, a higher rate or a longer trace is needed"
        )
    return RequestPlan(
        intended_s=intended,
        prompt_tokens=prompt,
        output_tokens=output,
        predicted_output_tokens=predict_lengths(run.predicted_output, output, run.seeds.prediction),
        phases=phases,
        measure_start_s=start,
        measure_end_s=end,
        hash_ids=None
        if table is None or "hash_ids" not in table
        else table["hash_ids"].to_numpy(dtype=object)[: len(intended)],
        notes=() if table is None else tuple(table.attrs["notes"]),
    )


def run_lengths(run: RunSpec, n: int) -> tuple[Lengths, Lengths]:
    """Prompt and output tokens of the first ``n`` requests of ``run``; also for closed loops, in order of issue.

    A trace shorter than ``n`` begins again.
    """
    if not isinstance(run.length_source, TraceLengths):
        return _lengths(run, n, None)
    assert isinstance(run.arrivals, Trace)
    own = run.arrivals.model_copy(update={"rate": None, "load": None})  # lengths do not depend on the rate
    prompt, output = _trace_lengths(own.table(run.seeds.arrivals, _scale(run)), run)
    return np.resize(prompt, n), np.resize(output, n)


def _lengths(run: RunSpec, n: int, table: pd.DataFrame | None) -> tuple[Lengths, Lengths]:
    if isinstance(run.length_source, TraceLengths):
        assert table is not None
        prompt, output = _trace_lengths(table, run)
        return prompt[:n], output[:n]
    if isinstance(run.length_source, JointSpec):
        return draw_joint(run.length_source, n, run.seeds.lengths)
    assert run.prompt is not None
    assert run.output is not None
    return draw_lengths(run.prompt, run.output, n, run.seeds.lengths)


def _trace_lengths(table: pd.DataFrame, run: RunSpec) -> tuple[Lengths, Lengths]:
    if table["prompt_tokens"].isna().any() or table["output_tokens"].isna().any():
        raise ValueError(
            f"{run.run_dir}: the trace has no lengths; give prompt and output instead of lengths: {{from: trace}}"
        )
    output = table["output_tokens"].to_numpy(np.int64)
    return table["prompt_tokens"].to_numpy(np.int64), np.maximum(
        output, 1
    )  # a kept zero still asks for its first token


def _scale(run: RunSpec) -> float:
    return run.length_source.scale if isinstance(run.length_source, TraceLengths) else 1.0


def _timeline(run: RunSpec, arrivals: ArrivalSpec, table: pd.DataFrame | None) -> tuple[Times, float, float]:
    """All arrivals up to the cooldown's limit, and the window of the measured ones."""
    warmup, measure = run.warmup, run.measure

    def times(n: int | None = None, duration: float | None = None) -> Times:
        if table is not None:  # read once
            return collect(iter([table["arrival_s"].to_numpy()]), n, duration)
        return arrival_times(arrivals, n=n, duration=duration, seed=run.seeds.arrivals)

    if warmup.seconds is not None:
        start = warmup.seconds
    else:
        start = _arrival_after(times, warmup.requests) if warmup.requests else 0.0
    if measure.seconds is not None:
        end = start + measure.seconds
    else:
        end = _arrival_after(times, len(times(duration=start)) + (measure.requests or 0))
    return times(duration=end + run.cooldown.seconds), start, end


def _arrival_after(times: Callable[..., Times], count: int) -> float:
    """When arrival ``count`` + 1 comes, so that ``count`` lie before it; just after arrival ``count`` where the process ends
    there or both come at one instant (requests of one instant stay in one phase)."""
    known = times(n=count + 1)
    if not len(known):
        return 0.0
    last = known[min(count, len(known)) - 1]
    return float(known[count]) if len(known) > count and known[count] > last else float(np.nextafter(last, np.inf))


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
