"""Prompt and output lengths: whole numbers of tokens drawn from a law, a data column or both columns together.

A law's ``mean`` and ``cv`` are those of the law before ``min`` and ``max``: the bounds condition it (as if lengths outside
were drawn again; nothing piles up at a bound), so the mean that results is another one, which ``mean_length`` gives exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy import stats

from workload.schema import Count, NonNegative, Positive, Spec, SpecError, did_you_mean, parse_tagged
from workload.seeds import streams

Lengths = NDArray[np.int64]

LONGEST = 10_000_000  # tokens; where a law without max is cut


class LengthSpec(Spec):
    """A law of lengths in tokens. Every draw turns one uniform number into one length, larger into longer."""

    dist: str

    def from_uniform(self, u: NDArray[np.float64]) -> Lengths:
        """The length at each ``u`` in [0, 1): the inverse of the distribution function."""
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """The largest length that can come out."""
        raise NotImplementedError

    def draw(self, n: int, rng: np.random.Generator) -> Lengths:
        return self.from_uniform(rng.random(n))


class Fixed(LengthSpec):
    """Always ``value``."""

    dist: Literal["fixed"]
    value: Annotated[Count, Field(description="tokens")]

    def from_uniform(self, u: NDArray[np.float64]) -> Lengths:
        return np.full(len(u), self.value, dtype=np.int64)

    @property
    def longest(self) -> int:
        return self.value


class BoundedSpec(LengthSpec):
    """A law conditioned on ``min`` <= length <= ``max``."""

    min: Annotated[Count, Field(description="shortest length, tokens")] = 1
    max: Annotated[Count | None, Field(description="longest length, tokens; left out: no bound")] = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"min = {self.min} is above max = {self.max}; min <= max is allowed")
        below, above = self._mass()
        if not above - below > 1e-9:
            upper = "no max" if self.max is None else f"max = {self.max}"
            raise ValueError(
                f"almost no length of this law lies between min = {self.min} and {upper}; bounds around its mean are allowed"
            )
        return self

    @property
    def longest(self) -> int:
        return LONGEST if self.max is None else self.max

    def frozen(self) -> Any:
        """The scipy law before bounds and rounding."""
        raise NotImplementedError

    def _mass(self) -> tuple[float, float]:
        """The distribution function at both ends of what rounds into [min, max]."""
        law = self.frozen()
        return float(law.cdf(self.min - 0.5)), float(law.cdf(self.longest + 0.5))

    def from_uniform(self, u: NDArray[np.float64]) -> Lengths:
        below, above = self._mass()
        values = self.frozen().ppf(below + u * (above - below))
        return np.clip(np.rint(values), self.min, self.longest).astype(
            np.int64
        )  # the clip only mends rounding at the ends


class Uniform(BoundedSpec):
    """Every length from ``min`` to ``max``, equally likely."""

    dist: Literal["uniform"]
    max: Annotated[Count, Field(description="longest length, tokens")]

    def frozen(self) -> Any:
        return stats.randint(self.min, self.max + 1)


class LogNormal(BoundedSpec):
    """Log-normal, by the mean and coefficient of variation before bounds, rounded to the nearest token."""

    dist: Literal["lognormal"]
    mean: Annotated[Positive, Field(description="mean before min and max, tokens")]
    cv: Annotated[Positive, Field(description="coefficient of variation before min and max")]

    def frozen(self) -> Any:
        variance = np.log1p(self.cv**2)
        return stats.lognorm(np.sqrt(variance), scale=self.mean * np.exp(-variance / 2))


class Gamma(BoundedSpec):
    """Gamma, by the mean and coefficient of variation before bounds, rounded to the nearest token."""

    dist: Literal["gamma"]
    mean: Annotated[Positive, Field(description="mean before min and max, tokens")]
    cv: Annotated[Positive, Field(description="coefficient of variation before min and max")]

    def frozen(self) -> Any:
        return stats.gamma(self.cv**-2, scale=self.mean * self.cv**2)


class Exponential(BoundedSpec):
    """Exponential with this mean before bounds, rounded to the nearest token."""

    dist: Literal["exponential"]
    mean: Annotated[Positive, Field(description="mean before min and max, tokens")]

    def frozen(self) -> Any:
        return stats.expon(scale=self.mean)


class Geometric(BoundedSpec):
    """Geometric on 1, 2, ...: after every token the output ends with the same probability 1 / mean."""

    dist: Literal["geometric"]
    mean: Annotated[Positive, Field(ge=1, description="mean before min and max, tokens, at least 1")]

    def frozen(self) -> Any:
        return stats.geom(1 / self.mean)


class Pareto(BoundedSpec):
    """Pareto with tail exponent ``alpha`` from ``min`` on, cut at ``max`` (which must be given)."""

    dist: Literal["pareto"]
    alpha: Annotated[Positive, Field(description="tail exponent: P(length > x) falls like x^-alpha")]
    max: Annotated[Count, Field(description="longest length, tokens")]

    def frozen(self) -> Any:
        return stats.pareto(self.alpha, scale=self.min - 0.5)


class Empirical(LengthSpec):
    """Lengths drawn with equal chance from a column of a CSV file."""

    dist: Literal["empirical"]
    path: Annotated[str, Field(description="CSV file with a header")]
    column: Annotated[str, Field(description="name of the column")]
    scale: Annotated[Positive, Field(description="factor on every length, then rounded, at least 1")] = 1.0

    @model_validator(mode="after")
    def _column_is_there(self) -> Self:
        read_length_column(self.path, self.column)
        return self

    def values(self) -> Lengths:
        """The column, scaled and sorted."""
        return np.sort(_scaled(read_length_column(self.path, self.column), self.scale))

    def from_uniform(self, u: NDArray[np.float64]) -> Lengths:
        values = self.values()
        return values[np.minimum((u * len(values)).astype(np.int64), len(values) - 1)]

    @property
    def longest(self) -> int:
        return int(self.values()[-1])


DISTRIBUTIONS: dict[str, type[LengthSpec]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "lognormal": LogNormal,
    "geometric": Geometric,
    "exponential": Exponential,
    "gamma": Gamma,
    "pareto": Pareto,
    "empirical": Empirical,
}


class JointSpec(Spec):
    """Prompt and output lengths drawn together, row by row, from two columns of one CSV file (their correlation kept)."""

    source: Annotated[Literal["file"], Field(alias="from")]
    path: Annotated[str, Field(description="CSV file with a header")]
    prompt_column: str
    output_column: str
    scale: Annotated[Positive, Field(description="factor on both lengths, then rounded, at least 1")] = 1.0

    @model_validator(mode="after")
    def _columns_are_there(self) -> Self:
        read_length_column(self.path, self.prompt_column, "prompt_column")
        read_length_column(self.path, self.output_column, "output_column")
        return self


class TraceLengths(Spec):
    """The lengths that the arrival trace gives each request."""

    source: Annotated[Literal["trace"], Field(alias="from")]
    scale: Annotated[Positive, Field(description="factor on both lengths, then rounded, at least 1")] = 1.0


SOURCES: dict[str, type[Spec]] = {"file": JointSpec, "trace": TraceLengths}


class PredictionSpec(Spec):
    """Predicted output length = output length x bias x a log-normal factor of mean 1 and this cv, rounded, at least 1."""

    cv: Annotated[NonNegative, Field(description="spread of the prediction's relative error; 0 predicts exactly")] = 0.0
    bias: Annotated[Positive, Field(description="factor between predicted and true length in the mean")] = 1.0


def parse_lengths(data: LengthSpec | Mapping[str, Any] | int) -> LengthSpec:
    """The typed law of ``{"dist": ..., ...}``; a plain number is a fixed length.

    Raises:
        SpecError: (a ValueError) naming the key, what was found and what is allowed.
    """
    if isinstance(data, int | float) and not isinstance(data, bool):
        data = {"dist": "fixed", "value": data}
    return parse_tagged(DISTRIBUTIONS, "dist", data)


def parse_length_source(data: Mapping[str, Any]) -> JointSpec | TraceLengths:
    """The typed form of ``{"from": "trace" | "file", ...}``, where both lengths come from one place."""
    parsed = parse_tagged(SOURCES, "from", data)
    assert isinstance(parsed, JointSpec | TraceLengths)
    return parsed


def draw_lengths(
    prompt_spec: LengthSpec | Mapping[str, Any] | int,
    output_spec: LengthSpec | Mapping[str, Any] | int,
    n: int,
    seed: int,
) -> tuple[Lengths, Lengths]:
    """``n`` prompt and ``n`` output lengths in tokens, each from its own stream.

    The same seed gives the same lengths, a longer list begins with the shorter one, and neither list depends on the law of
    the other.
    """
    prompt, output = parse_lengths(prompt_spec), parse_lengths(output_spec)
    prompt_rng, output_rng, _ = streams(seed, "lengths", 3)
    return prompt.draw(n, prompt_rng), output.draw(n, output_rng)


def draw_joint(spec: JointSpec, n: int, seed: int) -> tuple[Lengths, Lengths]:
    """``n`` rows of the file, with replacement: (prompt lengths, output lengths)."""
    prompt = _scaled(read_length_column(spec.path, spec.prompt_column), spec.scale)
    output = _scaled(read_length_column(spec.path, spec.output_column), spec.scale)
    rows = streams(seed, "lengths", 3)[2].integers(0, len(prompt), n)
    return prompt[rows], output[rows]


def predict_lengths(spec: PredictionSpec, output_tokens: Lengths, seed: int) -> Lengths:
    """What a predictor with this error would say of each output length, in tokens."""
    (rng,) = streams(seed, "prediction", 1)
    sigma = np.sqrt(np.log1p(spec.cv**2))
    factor = np.exp(sigma * rng.standard_normal(len(output_tokens)) - sigma**2 / 2)
    return np.maximum(np.rint(output_tokens * spec.bias * factor), 1).astype(np.int64)


def mean_length(spec: LengthSpec | Mapping[str, Any] | int) -> float:
    """The mean of the lengths that come out, bounds and rounding included, in tokens (one part in 10^6 or better)."""
    return length_moments(spec)[0]


def length_moments(spec: LengthSpec | Mapping[str, Any] | int) -> tuple[float, float]:
    """Mean (tokens) and coefficient of variation of the lengths that come out, bounds and rounding included."""
    parsed = parse_lengths(spec)
    if isinstance(parsed, Fixed):
        return float(parsed.value), 0.0
    if isinstance(parsed, Empirical):
        values = parsed.values()
        return float(values.mean()), float(values.std() / values.mean())
    assert isinstance(parsed, BoundedSpec)
    law = parsed.frozen()
    last = parsed.longest if parsed.max is not None else int(min(parsed.longest, np.ceil(law.isf(1e-12)) + 1))
    edges = law.cdf(np.arange(parsed.min - 1, last + 1) + 0.5)
    lengths = np.arange(parsed.min, last + 1)
    mass = np.diff(edges) / (edges[-1] - edges[0])
    mean = float(mass @ lengths)
    return mean, float(np.sqrt(mass @ (lengths - mean) ** 2)) / mean


def read_length_column(path: str | Path, column: str, key: str = "column") -> Lengths:
    """A column of positive whole numbers from a CSV file with a header; ``key`` is the study's for it.

    Raises:
        SpecError: no such file or column, or a value that is no length (with its line).
    """
    if not Path(path).is_file():
        raise SpecError(("path",), f"found {str(path)!r}, which is no file")
    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise SpecError(("path",), f"{path}: not a CSV file: {' '.join(str(error).split())}") from None
    if column not in table:
        raise SpecError(
            (key,), f"found {column!r}; {did_you_mean(column, list(map(str, table.columns)))} (columns of {path})"
        )
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~(values >= 1) | (values != np.rint(values)))
    if bad.size:
        found = table[column].iloc[bad[0]]
        raise SpecError((key,), f"{path}:{bad[0] + 2}: {column} is {found}; a whole number of at least 1 is allowed")
    if not len(values):
        raise SpecError(("path",), f"{path} holds no rows")
    return values.astype(np.int64)


def _scaled(lengths: Lengths, scale: float) -> Lengths:
    return np.maximum(np.rint(lengths * scale), 1).astype(np.int64)
