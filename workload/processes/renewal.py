"""Renewal processes and bursts: one unit-rate sequence that a rate stretches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy import optimize, special

from workload.processes.base import CHUNK, RatedSpec, Times, collect
from workload.schema import Count, Positive, Switch
from workload.seeds import streams


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


def settled(spec: RenewalSpec, count: int, duration: float | None, seed: int) -> RenewalSpec:
    """``spec`` with its rate moved so that arrival ``count`` + 1 of this seed falls on ``duration`` seconds.

    ``duration`` is ``count`` / rate where it is ``None``. Exactly ``count`` arrivals then lie in [0, duration); for Poisson
    that is the process conditioned on its count.
    """
    end = count / spec.required_rate() if duration is None else duration
    if count == 0 or end == 0:
        return spec.model_copy(update={"fixed_count": False})
    unit = collect(spec.unit_chunks(seed), count + 1, None)
    return spec.model_copy(update={"rate": float(unit[count]) / end, "fixed_count": False})
