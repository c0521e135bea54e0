"""The contract of an arrival process: a frozen model that yields its timeline piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from workload.schema import Positive, Spec

CHUNK = 4096  # gaps drawn at a time; fixed, so that a longer timeline begins with the shorter one

Times = NDArray[np.float64]


class ArrivalSpec(Spec):
    """What every arrival process answers."""

    process: str

    @property
    def mean_rate(self) -> float | None:
        """Requests per second in the long run; ``None`` while only a load is known."""
        raise NotImplementedError

    def expected_count(self, duration: float) -> float | None:
        """Mean number of arrivals in [0, duration) seconds; ``None`` while only a load is known."""
        return None if self.mean_rate is None else self.mean_rate * duration

    def at_rate(self, rate: float) -> Self:
        """The same process offered at ``rate`` requests a second, whatever rate or load it was given with."""
        raise NotImplementedError

    def chunks(self, seed: int) -> Iterator[Times]:
        """The timeline piece by piece: ascending seconds, for ever or until the process ends."""
        raise NotImplementedError


class RatedSpec(ArrivalSpec):
    """A process that a rate stretches: exactly one of ``rate`` (requests/s) and ``load`` (a share of the capacity).

    Where ``own_rate`` holds the process has rates of its own, and neither need be given.
    """

    own_rate: ClassVar[bool] = False

    rate: Annotated[Positive | None, Field(description="requests per second")] = None
    load: Annotated[Positive | None, Field(description="rate as a share of the measured capacity")] = None

    @model_validator(mode="after")
    def _one_of_rate_and_load(self) -> Self:
        given = (self.rate is not None) + (self.load is not None)
        if given == 2 or (given == 0 and not self.own_rate):
            found, allowed = (
                ("both", "at most one" if self.own_rate else "exactly one") if given else ("neither", "exactly one")
            )
            raise ValueError(
                f"found {found} of 'rate' (requests/s) and 'load' (share of capacity); {allowed} is allowed"
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
        self.refuse_load()
        assert self.rate is not None
        return self.rate

    def refuse_load(self) -> None:
        """An error where only a load was given: times need a rate."""
        if self.load is not None:
            raise ValueError(
                f"arrivals of process {self.process!r} are given by load = {self.load}; times need a rate: "
                "measure the capacity and use spec.at_rate(load * capacity)"
            )


def collect(chunks: Iterator[Times], n: int | None, duration: float | None) -> Times:
    """The first ``n`` times of a timeline, or those in [0, duration), or whichever ends first."""
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
