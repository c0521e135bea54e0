"""Times that clients take: think times of closed loops and sessions, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from workload.schema import NonNegative, Positive, Spec, parse_tagged
from workload.seeds import PURPOSES


class DurationSpec(Spec):
    """A law of durations in seconds."""

    dist: str

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        raise NotImplementedError

    @property
    def mean_s(self) -> float:
        raise NotImplementedError


class FixedTime(DurationSpec):
    """Always ``value`` seconds."""

    dist: Literal["fixed"]
    value: Annotated[NonNegative, Field(description="seconds")]

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.full(n, self.value)

    @property
    def mean_s(self) -> float:
        return self.value


class UniformTime(DurationSpec):
    """Uniform between ``min`` and ``max`` seconds."""

    dist: Literal["uniform"]
    min: Annotated[NonNegative, Field(description="seconds")]
    max: Annotated[Positive, Field(description="seconds")]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"min = {self.min} is above max = {self.max}; min <= max is allowed")
        return self

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return self.min + (self.max - self.min) * rng.random(n)

    @property
    def mean_s(self) -> float:
        return (self.min + self.max) / 2


class ExponentialTime(DurationSpec):
    """Exponential with this mean."""

    dist: Literal["exponential"]
    mean: Annotated[Positive, Field(description="seconds")]

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.standard_exponential(n) * self.mean

    @property
    def mean_s(self) -> float:
        return self.mean


class LogNormalTime(DurationSpec):
    """Log-normal with this mean and coefficient of variation."""

    dist: Literal["lognormal"]
    mean: Annotated[Positive, Field(description="seconds")]
    cv: Annotated[Positive, Field(description="coefficient of variation")]

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        variance = np.log1p(self.cv**2)
        return self.mean * np.exp(np.sqrt(variance) * rng.standard_normal(n) - variance / 2)

    @property
    def mean_s(self) -> float:
        return self.mean


DURATIONS: dict[str, type[DurationSpec]] = {
    "fixed": FixedTime,
    "uniform": UniformTime,
    "exponential": ExponentialTime,
    "lognormal": LogNormalTime,
}


def parse_duration(data: DurationSpec | Mapping[str, Any] | float) -> DurationSpec:
    """The typed law of ``{"dist": ..., ...}``; a plain number is a fixed time in seconds.

    Raises:
        SpecError: (a ValueError) naming the key, what was found and what is allowed.
    """
    if isinstance(data, int | float) and not isinstance(data, bool):
        data = {"dist": "fixed", "value": data}
    return parse_tagged(DURATIONS, "dist", data)


class ThinkTimes:
    """Think times of many clients, each from a stream of its own.

    Client c's k-th think time is the same in every run of a seed, whatever the others do in between.
    """

    def __init__(self, spec: DurationSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed
        self._streams: dict[int, np.random.Generator] = {}

    def __call__(self, client: int) -> float:
        """The next think time of ``client``, in seconds."""
        if client not in self._streams:
            sequence = np.random.SeedSequence(self._seed, spawn_key=(PURPOSES["clients"], client))
            self._streams[client] = np.random.default_rng(sequence)
        return float(self._spec.draw(1, self._streams[client])[0])
