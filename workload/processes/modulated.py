"""Processes whose rate changes: at random (mmpp) or by a profile (piecewise).

Both run a unit-rate Poisson sequence through the inverse of the cumulative rate (time rescaling, Cinlar 1975, ch. 4): exact,
and the points of a load sweep share the sequence while dwell times and breakpoints stay the seconds they were given as.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy import linalg

from workload.processes.base import CHUNK, RatedSpec, Times
from workload.schema import NonNegative, Number, Positive
from workload.seeds import streams

Matrix = NDArray[np.float64]

PATH_CHUNK = 256  # switches of the hidden chain drawn at a time


def unit_poisson(rng: np.random.Generator) -> Iterator[Times]:
    """A Poisson process of rate 1, chunk by chunk."""
    last = 0.0
    while True:
        gaps = rng.standard_exponential(CHUNK)
        gaps[0] += last
        times = np.cumsum(gaps)
        last = float(times[-1])
        yield times


class MMPP(RatedSpec):
    """Markov-modulated Poisson process: a hidden chain that starts in its stationary law picks the rate of Poisson arrivals.

    ``rates`` are requests/s in each state. With ``rate`` or ``load`` they are scaled to that stationary mean, while the
    chain keeps its seconds. The chain: ``sojourn`` (mean seconds in each of two states) or ``generator``.
    """

    own_rate: ClassVar[bool] = True
    process: Literal["mmpp"]
    rates: Annotated[tuple[NonNegative, ...], Field(min_length=2, description="requests/s in each state")]
    sojourn: Annotated[
        tuple[Positive, Positive] | None, Field(description="mean seconds in each state, for two states")
    ] = None
    generator: Annotated[
        tuple[tuple[Number, ...], ...] | None,
        Field(description="switching rates per second, row = from; rows sum to 0"),
    ] = None

    @model_validator(mode="after")
    def _a_chain(self) -> Self:
        if (self.sojourn is None) == (self.generator is None):
            found = "neither" if self.sojourn is None else "both"
            raise ValueError(f"found {found} of 'sojourn' and 'generator'; exactly one is allowed")
        if self.sojourn is not None and len(self.rates) != 2:
            raise ValueError(f"found {len(self.rates)} rates; 'sojourn' is for two states, give 'generator' for more")
        if max(self.rates) == 0:
            raise ValueError("found rates of 0 in every state; at least one above 0 is allowed")
        check_generator(self.chain, len(self.rates))
        return self

    @property
    def chain(self) -> Matrix:
        """The generator matrix, per second."""
        if self.sojourn is not None:
            first, second = 1 / self.sojourn[0], 1 / self.sojourn[1]
            return np.array([[-first, first], [second, -second]])
        rows = self.generator or ()
        if len({len(row) for row in rows} | {len(rows)}) != 1:
            raise ValueError(f"found a generator of {len(rows)} rows that is not square")
        return np.array(rows, dtype=float)

    @property
    def scaled_rates(self) -> Times:
        """Requests/s in each state, at the rate asked for."""
        rates = np.array(self.rates, dtype=float)
        return rates if self.rate is None else rates * (self.rate / float(stationary(self.chain) @ rates))

    @property
    def mean_rate(self) -> float | None:
        return None if self.load is not None else float(stationary(self.chain) @ self.scaled_rates)

    def index_of_dispersion(self, t: float) -> float:
        """Variance over mean of the count in ``t`` seconds (Fischer and Meier-Hellstern 1993, any number of states)."""
        return mmpp_dispersion(self.scaled_rates, self.chain, t)

    def chunks(self, seed: int) -> Iterator[Times]:
        self.refuse_load()
        path_rng, count_rng = streams(seed, "arrivals", 2)
        segments = _chain_segments(self.chain, path_rng)
        rates = self.scaled_rates
        starts, passed, slopes = np.empty(0), np.empty(0), np.empty(0)  # time, cumulative rate and rate at each switch
        now, total = 0.0, 0.0
        for unit in unit_poisson(count_rng):
            while total <= unit[-1]:
                states, dwell = next(segments)
                ends = now + np.cumsum(dwell)
                sums = total + np.cumsum(dwell * rates[states])
                starts = np.concatenate([starts, [now], ends[:-1]])
                passed = np.concatenate([passed, [total], sums[:-1]])
                slopes = np.concatenate([slopes, rates[states]])
                now, total = float(ends[-1]), float(sums[-1])
            at = np.searchsorted(passed, unit, side="right") - 1
            yield starts[at] + (unit - passed[at]) / slopes[at]
            keep = int(at[-1])
            starts, passed, slopes = starts[keep:], passed[keep:], slopes[keep:]


class Piecewise(RatedSpec):
    """Poisson arrivals whose rate follows a profile of ``[seconds, requests/s]`` points, the first at 0.

    With ``rate`` or ``load`` the profile's second numbers are multiples of it. Between points the rate is held (``step``) or
    moves in a straight line (``linear``); after the last one it stays, or the profile starts again every ``period`` seconds.
    """

    own_rate: ClassVar[bool] = True
    process: Literal["piecewise"]
    profile: Annotated[
        tuple[tuple[NonNegative, NonNegative], ...],
        Field(min_length=1, description="[seconds, requests/s or multiple of the rate] points"),
    ]
    interpolate: Annotated[Literal["step", "linear"], Field(description="between the points")] = "step"
    period: Annotated[Positive | None, Field(description="seconds after which the profile starts again")] = None

    @model_validator(mode="after")
    def _a_profile(self) -> Self:
        times = [point[0] for point in self.profile]
        if times[0] != 0:
            raise ValueError(f"the profile starts at {times[0]} s; it must start at 0")
        if any(later <= earlier for earlier, later in itertools.pairwise(times)):
            raise ValueError(f"the profile's times {times} must ascend")
        if self.period is not None and self.period <= times[-1]:
            raise ValueError(f"period is {self.period} s; it must be above the profile's last time, {times[-1]}")
        if max(point[1] for point in self.profile) == 0:
            raise ValueError("the profile is 0 everywhere; at least one rate above 0 is allowed")
        return self

    @property
    def mean_rate(self) -> float | None:
        """Mean over one period, or over the profile up to its last point (the last rate, where there is only one)."""
        end = self.period or self.profile[-1][0]
        if self.load is not None:
            return None
        return float(self._factor * (self.cumulative(np.array([end]))[0] / end if end else self.profile[-1][1]))

    def expected_count(self, duration: float) -> float | None:
        return None if self.load is not None else float(self._factor * self.cumulative(np.array([duration]))[0])

    def chunks(self, seed: int) -> Iterator[Times]:
        self.refuse_load()
        (rng,) = streams(seed, "arrivals", 1)
        _, _, _, total = self._pieces()
        for unit in unit_poisson(rng):
            passed = unit / self._factor
            if math.isfinite(total) and self.period is None and passed[-1] >= total:
                yield self.inverse(passed[passed < total])
                return
            yield self.inverse(passed)

    @property
    def _factor(self) -> float:
        return 1.0 if self.rate is None else self.rate

    def _pieces(self) -> tuple[Times, Times, Times, float]:
        """Start, rate at the start and slope of each straight piece, and the integral over all of them (may be infinite)."""
        starts = np.array([point[0] for point in self.profile])
        values = np.array([point[1] for point in self.profile])
        ends = np.append(starts[1:], self.period if self.period is not None else np.inf)
        slopes = np.zeros(len(starts))
        if self.interpolate == "linear":
            after = np.append(values[1:], values[0] if self.period is not None else values[-1])
            slopes = (after - values) / (ends - starts)  # the last piece of a profile without period: x / inf = 0
        lengths = ends - starts
        last = np.inf if self.period is None and values[-1] > 0 else 0.0
        finite = np.isfinite(lengths)
        areas = np.where(
            finite, values * np.where(finite, lengths, 0) + slopes * np.where(finite, lengths, 0) ** 2 / 2, last
        )
        return starts, values, slopes, float(areas.sum())

    def _areas_before(self) -> Times:
        starts, values, slopes, _ = self._pieces()
        widths = np.diff(starts)
        return np.concatenate([[0.0], np.cumsum(values[:-1] * widths + slopes[:-1] * widths**2 / 2)])

    def cumulative(self, t: Times) -> Times:
        """Integral of the profile over [0, t], before ``rate`` multiplies it."""
        starts, values, slopes, total = self._pieces()
        before = self._areas_before()
        rounds = np.floor(t / self.period) if self.period is not None else np.zeros_like(t)
        inside = t - rounds * (self.period or 0.0)
        at = np.searchsorted(starts, inside, side="right") - 1
        x = inside - starts[at]
        return (
            rounds * (total if self.period is not None else 0.0) + before[at] + values[at] * x + slopes[at] * x**2 / 2
        )

    def inverse(self, passed: Times) -> Times:
        """The time at which :meth:`cumulative` reaches ``passed``."""
        starts, values, slopes, total = self._pieces()
        before = self._areas_before()
        rounds = np.floor(passed / total) if self.period is not None else np.zeros_like(passed)
        inside = passed - rounds * (total if self.period is not None else 0.0)
        at = np.searchsorted(before, inside, side="right") - 1
        rest = inside - before[at]
        root = np.sqrt(np.maximum(values[at] ** 2 + 2 * slopes[at] * rest, 0.0))
        # 2 r / (v + root) instead of (root - v) / slope: no cancellation, and right where the slope is 0
        x = np.divide(2 * rest, values[at] + root, out=np.zeros_like(rest), where=rest > 0)
        return rounds * (self.period or 0.0) + starts[at] + x


def check_generator(chain: Matrix, states: int) -> None:
    """Raises ValueError where ``chain`` is no irreducible generator of ``states`` states."""
    if chain.shape != (states, states):
        raise ValueError(
            f"found a generator of shape {chain.shape} for {states} rates; {states} rows of {states} are allowed"
        )
    off = chain - np.diag(np.diag(chain))
    if (off < 0).any():
        raise ValueError("found a negative switching rate off the generator's diagonal; at least 0 is allowed")
    if not np.allclose(chain.sum(axis=1), 0, atol=1e-9 * max(1.0, float(np.abs(chain).max()))):
        raise ValueError(f"the generator's rows sum to {chain.sum(axis=1).tolist()}; each must sum to 0")
    reach = np.linalg.matrix_power((off > 0) + np.eye(states), states)
    if (reach == 0).any():
        raise ValueError("the chain can't get from every state to every other; every state must be reachable")


def stationary(chain: Matrix) -> Times:
    """The stationary law pi of a generator: pi Q = 0, sum 1."""
    states = len(chain)
    system = np.vstack([chain.T, np.ones(states)])
    return np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]


def mmpp_dispersion(rates: Times, chain: Matrix, t: float) -> float:
    """Var N(t) / E N(t) of a stationary MMPP, ``t`` in seconds.

    Var N(t) = lambda t + 2 pi R (t D - D^2 + e^{Qt} D^2) R 1, with the deviation matrix D = (1 pi - Q)^-1 - 1 pi: twice the
    integral of the rate's autocovariance. Agrees for two states with Fischer and Meier-Hellstern, "The MMPP cookbook" (1993).
    """
    if t <= 0:
        raise ValueError(f"t is {t} s; it must be above 0")
    law = stationary(chain)
    ones = np.ones((len(chain), 1))
    projection = ones @ law[None, :]
    deviation = np.linalg.inv(projection - chain) - projection
    squared = deviation @ deviation
    kernel = t * deviation - squared + linalg.expm(chain * t) @ squared
    mean = float(law @ rates) * t
    return 1 + 2 * float((law * rates) @ kernel @ rates) / mean


def _chain_segments(chain: Matrix, rng: np.random.Generator) -> Iterator[tuple[NDArray[np.int64], Times]]:
    """The hidden chain's path from its stationary law: (states, seconds in each), a block at a time."""
    leave = -np.diag(chain)
    jumps = np.where(np.eye(len(chain), dtype=bool), 0.0, chain) / leave[:, None]
    thresholds = [row[:-1].tolist() for row in np.cumsum(jumps, axis=1)]  # without the last: it is 1 up to rounding
    state = bisect(np.cumsum(stationary(chain))[:-1].tolist(), rng.random())
    while True:
        states = np.empty(PATH_CHUNK, dtype=np.int64)
        for i, pick in enumerate(rng.random(PATH_CHUNK).tolist()):
            states[i] = state
            state = bisect(thresholds[state], pick)
        yield states, rng.standard_exponential(PATH_CHUNK) / leave[states]
