"""The simulated latency-load curve of a sweep: its own requests at other rates, and fresh ones to show the chance.

The runs of a sweep share one sequence of arrivals, scaled to each load, and one list of lengths. The same sequence goes
through the simulated engine here, so at a measured load the curve answers for the measured dot itself. The band comes from
fresh sequences, their gaps and requests drawn with replacement, and shows where runs of this length fall by chance alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.predictions.simulated import cooldown_of
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.simulation.offers import offer_plan
from analysis.summary import latencies
from workload.plan import COOLDOWN, MEASURE, WARMUP, RequestPlan

Array = NDArray[np.float64]

RENEWAL = ("poisson", "constant", "gamma", "weibull")  # gaps may be drawn anew
BETWEEN = (0.15, 0.45, 0.9)  # loads that a curve shows beside the measured ones
FRESH = 20  # fresh sequences for the band
METRICS = ("ttft", "e2e")


@dataclass(frozen=True)
class Curve:
    """One line: at each ``load`` (realised) the median and mean latency (s) of the sweep's own requests, and the lowest
    and highest median of ``fresh`` other sequences of the same length. Arrays of one length, by metric."""

    load: Array
    median: dict[str, Array]
    mean: dict[str, Array]
    low: dict[str, Array]
    high: dict[str, Array]
    fresh: int


@dataclass(frozen=True)
class _Sequence:
    """Unit-rate gaps and the lengths of the requests behind them."""

    gaps: Array
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def resampled(self, n: int, rng: np.random.Generator) -> _Sequence:
        """``n`` gaps and, apart from them, ``n`` requests, drawn with replacement."""
        gaps = rng.choice(self.gaps, n)
        who = rng.integers(self.prompt.size, size=n)
        return _Sequence(gaps, self.prompt[who], self.output[who])

    def extended(self, n: int, rng: np.random.Generator) -> _Sequence:
        """At least ``n`` requests: the sequence itself, and more of its kind behind it."""
        lack = n - self.gaps.size
        if lack <= 0:
            return self
        more = self.resampled(lack, rng)
        return _Sequence(
            np.concatenate([self.gaps, more.gaps]),
            np.concatenate([self.prompt, more.prompt]),
            np.concatenate([self.output, more.output]),
        )


def simulated_curve(runs: Sequence[Run], model: StepTimeModel, capacity: float, seed: int = 0) -> Curve | None:
    """The curve through the stable runs of one sweep; None where their arrivals can't be drawn anew.

    Args:
        runs: at least one; windows, engine and requests are those of the one with the most requests.
        capacity: completions a second that make a load of 1.
    """
    longest = max(runs, key=lambda run: len(run.requests))
    process = ((longest.meta.get("spec") or {}).get("arrivals") or {}).get("process")
    rates = sorted(float(run.meta["rate"]) for run in runs if run.meta.get("rate"))
    if process not in RENEWAL or not rates or (longest.requests["cached_tokens"].fillna(0) > 0).any():
        return None
    rng = np.random.default_rng(seed)
    start, end = longest.window
    loads = sorted({rate / capacity for rate in rates} | {load for load in BETWEEN if load < 0.99})
    sequence = _sequence(longest)
    own = sequence.extended(_enough(loads[-1] * capacity, end), rng)
    found: dict[str, dict[str, list[float]]] = {
        kind: {metric: [] for metric in METRICS} for kind in ("median", "mean", "low", "high")
    }
    realised = []
    for load in loads:
        rate = load * capacity
        measured = _simulate(own, rate, longest, model, seed)
        realised.append(measured["ttft"].size / (end - start) / capacity)
        fresh = [sequence.resampled(_enough(rate, end), rng) for _ in range(FRESH)]
        others = [_simulate(other, rate, longest, model, seed + 1 + k) for k, other in enumerate(fresh)]
        for metric in METRICS:
            medians = [float(np.median(other[metric])) for other in others]
            found["median"][metric].append(float(np.median(measured[metric])))
            found["mean"][metric].append(float(np.mean(measured[metric])))
            found["low"][metric].append(min(medians))
            found["high"][metric].append(max(medians))
    arrays = {kind: {name: np.array(values) for name, values in by.items()} for kind, by in found.items()}
    order = np.argsort(realised, kind="stable")
    sorted_arrays = {kind: {name: values[order] for name, values in by.items()} for kind, by in arrays.items()}
    return Curve(np.array(realised)[order], fresh=FRESH, **sorted_arrays)


def _enough(rate: float, end: float) -> int:
    """Requests for a window that ends at ``end`` (s), and for a cooldown behind it, whatever chance does to the count."""
    expected = rate * (end + 10.0)
    return round(expected + 5.0 * expected**0.5) + 30


def _sequence(run: Run) -> _Sequence:
    rows = run.requests.sort_values("intended_s", kind="stable")
    gaps = np.diff(rows["intended_s"].to_numpy(dtype=float), prepend=0.0) * float(run.meta["rate"])
    output = rows["output_tokens"].where(rows["finish_reason"] == "stop", rows["max_tokens"])
    return _Sequence(gaps, rows["prompt_tokens"].to_numpy(dtype=np.int64), output.to_numpy(dtype=np.int64))


def _simulate(sequence: _Sequence, rate: float, run: Run, model: StepTimeModel, seed: int) -> dict[str, Array]:
    start, end = run.window
    intended = np.cumsum(sequence.gaps) / rate
    phases = np.full(intended.size, COOLDOWN, dtype="<U8")
    phases[intended < end] = MEASURE
    phases[intended < start] = WARMUP
    plan = RequestPlan(intended, sequence.prompt, sequence.output, sequence.output, phases, start, end)
    rows = run.requests
    way_in = (rows["received_s"] - rows["intended_s"] - rows["cap_wait"].fillna(0.0)).mean()
    way_out = (rows["finished_s"] - rows["done_s"]).mean()
    offered = replace(
        offer_plan(plan),
        mean_transit_in_s=float(np.nan_to_num(way_in)),
        transit_out_s=max(0.0, float(np.nan_to_num(way_out))),
    )
    return latencies(simulate_engine(offered, model, run, seed=seed, cooldown_limit_s=cooldown_of(run)))
