"""Arrival processes: the whole timeline of a run, drawn before it starts from its own seeded stream.

``arrival_times`` is the one entry. Every process is a small frozen model under its YAML name; the random ones are one
unit-rate sequence that a rate stretches, so that the points of a load sweep share their randomness. The processes whose rate
changes (mmpp, piecewise) are in ``modulated.py``, traces in ``traces/``; closed loops and sessions have no timeline
beforehand (``sessions.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy import optimize, special

from workload.schema import Count, Positive, Spec, SpecError, Switch, parse_tagged
from workload.seeds import streams

CHUNK = 4096  # gaps drawn at a time; fixed, so that a longer timeline begins with the shorter one

Times = NDArray[np.float64]


class ArrivalSpec(Spec):
    """What every arrival process answers."""

    process: str

    @property
    def mean_rate(self) -> float | None:
        """Requests per second in the long run; ``None`` while only a load is known."""
        raise NotImplementedError

    def at_rate(self, rate: float) -> Self:
        """The same process offered at ``rate`` requests a second, whatever rate or load it was given with."""
        raise NotImplementedError

    def chunks(self, seed: int) -> Iterator[Times]:
        """The timeline piece by piece: ascending seconds, for ever or until the process ends."""
        raise NotImplementedError


class RatedSpec(ArrivalSpec):
    """A process that a rate stretches: exactly one of ``rate`` (requests/s) and ``load`` (a share of the capacity)."""

    rate: Annotated[Positive | None, Field(description="requests per second")] = None
    load: Annotated[Positive | None, Field(description="rate as a share of the measured capacity")] = None

    @model_validator(mode="after")
    def _one_of_rate_and_load(self) -> Self:
        if (self.rate is None) == (self.load is None):
            found = "neither" if self.rate is None else "both"
            raise ValueError(
                f"found {found} of 'rate' (requests/s) and 'load' (share of capacity); exactly one is allowed"
            )
        return self

    @property
    def mean_rate(self) -> float | None:
        return self.rate

    def at_rate(self, rate: float) -> Self:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rate is {rate}; it must be above 0 requests a second")
        return self.model_copy(update={"rate": float(rate), "load": None})

    def required_rate(self) -> float:
        """The rate, or an error where only a load was given."""
        if self.rate is None:
            raise ValueError(
                f"arrivals of process {self.process!r} are given by load = {self.load}; times need a rate: "
                "measure the capacity and use spec.at_rate(load * capacity)"
            )
        return self.rate


class RenewalSpec(RatedSpec):
    """Independent, equally distributed gaps; the first arrival comes one gap after 0 (an ordinary renewal process)."""

    fixed_count: Annotated[
        Switch,
        Field(
            description="exactly round(rate x duration) arrivals: gaps rescaled so that the one after them falls on the end"
        ),
    ] = False

    def unit_gaps(self, rng: np.random.Generator, count: int) -> Times:
        """``count`` gaps of mean 1."""
        raise NotImplementedError

    @property
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps."""
        raise NotImplementedError

    def unit_chunks(self, seed: int) -> Iterator[Times]:
        (rng,) = streams(seed, "arrivals", 1)
        last = 0.0
        while True:
            gaps = self.unit_gaps(rng, CHUNK)
            gaps[0] += last  # one running sum over all chunks, so the chunk size leaves no trace in the rounding
            times = np.cumsum(gaps)
            last = float(times[-1])
            yield times

    def chunks(self, seed: int) -> Iterator[Times]:
        rate = self.required_rate()
        for times in self.unit_chunks(seed):
            yield times / rate


class Poisson(RenewalSpec):
    """Exponential gaps."""

    process: Literal["poisson"]

    def unit_gaps(self, rng: np.random.Generator, count: int) -> Times:
        return rng.standard_exponential(count)

    @property
    def gap_cv(self) -> float:
        return 1.0


class Constant(RenewalSpec):
    """Equal gaps: the k-th arrival at k / rate."""

    process: Literal["constant"]

    def unit_gaps(self, rng: np.random.Generator, count: int) -> Times:
        return np.ones(count)

    @property
    def gap_cv(self) -> float:
        return 0.0


class Gamma(RenewalSpec):
    """Gamma gaps with shape 1 / cv^2: smoother than Poisson below cv 1, burstier above."""

    process: Literal["gamma"]
    cv: Annotated[Positive, Field(description="coefficient of variation of the gaps")]

    def unit_gaps(self, rng: np.random.Generator, count: int) -> Times:
        shape = self.cv**-2
        return rng.standard_gamma(shape, count) / shape

    @property
    def gap_cv(self) -> float:
        return self.cv


class Weibull(RenewalSpec):
    """Weibull gaps whose shape is solved from cv; heavier than gamma in the tail for cv > 1."""

    process: Literal["weibull"]
    cv: Annotated[Positive, Field(ge=0.01, le=20, description="coefficient of variation of the gaps, 0.01 to 20")]

    def unit_gaps(self, rng: np.random.Generator, count: int) -> Times:
        shape = weibull_shape(self.cv)
        return rng.weibull(shape, count) / math.exp(special.gammaln(1 + 1 / shape))

    @property
    def gap_cv(self) -> float:
        return self.cv


class Burst(RatedSpec):
    """``size`` requests at the same instant, again every ``size / rate`` seconds; the first burst at 0."""

    process: Literal["burst"]
    size: Annotated[Count, Field(description="requests of one burst")]

    def chunks(self, seed: int) -> Iterator[Times]:
        period = self.size / self.required_rate()
        first = 0
        bursts = max(1, CHUNK // self.size)
        while True:
            yield np.repeat((first + np.arange(bursts)) * period, self.size)
            first += bursts


def weibull_shape(cv: float) -> float:
    """Shape k of the Weibull law with this coefficient of variation: Gamma(1+2/k) / Gamma(1+1/k)^2 = 1 + cv^2."""

    def misfit(log_shape: float) -> float:
        k = math.exp(log_shape)
        return float(special.gammaln(1 + 2 / k) - 2 * special.gammaln(1 + 1 / k)) - math.log1p(cv * cv)

    return math.exp(optimize.brentq(misfit, math.log(0.05), math.log(500.0), xtol=1e-14))


PROCESSES: dict[str, type[ArrivalSpec]] = {
    "poisson": Poisson,
    "constant": Constant,
    "gamma": Gamma,
    "weibull": Weibull,
    "burst": Burst,
}


def parse_arrivals(data: ArrivalSpec | Mapping[str, Any]) -> ArrivalSpec:
    """The typed model of ``{"process": ..., ...}``.

    Raises:
        SpecError: (a ValueError) naming the key, what was found and what is allowed.
    """
    return parse_tagged(PROCESSES, "process", data)


def arrival_times(
    spec: ArrivalSpec | Mapping[str, Any], n: int | None = None, seed: int = 0, duration: float | None = None
) -> Times:
    """Arrival times of a process, in seconds from the run's origin, ascending, float64.

    Args:
        spec: the process and its parameters, e.g. ``{"process": "poisson", "rate": 5.0}`` (requests per second).
        n: number of arrivals; fewer only where the process itself ends (a trace, a profile that falls to 0 for good).
        seed: of the arrival stream. The same seed gives the same times; a longer timeline begins with the shorter one
            (except with ``fixed_count``), and a renewal process at rate r gives the unit-rate times divided by r.
        duration: seconds; arrivals in [0, duration). With ``n`` too, whichever ends first.

    Raises:
        ValueError: neither ``n`` nor ``duration`` given, a mistake in ``spec``, or a process without a timeline beforehand.

    >>> arrival_times({"process": "constant", "rate": 4.0}, n=3)
    array([0.25, 0.5 , 0.75])
    """
    parsed = parse_arrivals(spec)
    if n is None and duration is None:
        raise ValueError("arrival_times needs n (arrivals) or duration (seconds)")
    if n is not None and n < 0:
        raise ValueError(f"n is {n}; it must be at least 0")
    if duration is not None and not (math.isfinite(duration) and duration >= 0):
        raise ValueError(f"duration is {duration}; it must be a number of seconds of at least 0")
    if isinstance(parsed, RenewalSpec) and parsed.fixed_count:
        if n is not None and duration is not None:
            raise ValueError("with fixed_count give n or duration: the rate fixes the other")
        count = n if n is not None else round(parsed.required_rate() * (duration or 0.0))
        return _collect(settled(parsed, count, duration, seed).chunks(seed), count, None)
    return _collect(parsed.chunks(seed), n, duration)


def settled(spec: RenewalSpec, count: int, duration: float | None, seed: int) -> RenewalSpec:
    """``spec`` with its rate moved so that arrival ``count`` + 1 of this seed falls on ``duration`` seconds.

    ``duration`` is ``count`` / rate where it is ``None``. Exactly ``count`` arrivals then lie in [0, duration); for Poisson
    that is the process conditioned on its count.
    """
    end = count / spec.required_rate() if duration is None else duration
    if count == 0 or end == 0:
        return spec.model_copy(update={"fixed_count": False})
    unit = _collect(spec.unit_chunks(seed), count + 1, None)
    return spec.model_copy(update={"rate": float(unit[count]) / end, "fixed_count": False})


def _collect(chunks: Iterator[Times], n: int | None, duration: float | None) -> Times:
    pieces: list[Times] = []
    count = 0
    for times in chunks:
        if duration is not None and times.size and times[-1] >= duration:
            pieces.append(times[: np.searchsorted(times, duration, side="left")])
            break
        pieces.append(times)
        count += times.size
        if n is not None and count >= n:
            break
    joined = np.concatenate(pieces) if pieces else np.empty(0)
    return joined[:n]


__all__ = ["ArrivalSpec", "PROCESSES", "RatedSpec", "RenewalSpec", "SpecError", "arrival_times", "parse_arrivals"]
