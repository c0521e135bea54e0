"""The keys of a study file above the typed parts: top level, workload defaults, experiments, spans and objectives."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StringConstraints, field_validator, model_validator

from workload.schema import Count, NonNegative, Positive, Spec, Switch, Unit, Whole
from workload.seeds import streams

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]


class Span(Spec):
    """How long a phase lasts: exactly one of seconds and requests."""

    seconds: Annotated[NonNegative | None, Field(description="seconds")] = None
    requests: Annotated[Whole | None, Field(description="arrivals")] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.seconds is None) == (self.requests is None):
            found = "neither" if self.seconds is None else "both"
            raise ValueError(f"found {found} of 'seconds' and 'requests'; exactly one is allowed")
        return self

    def empty(self) -> bool:
        return not self.seconds and not self.requests


class Limit(Spec):
    """How long to wait at most."""

    seconds: Annotated[NonNegative, Field(description="seconds")]


class SLO(Spec):
    """Service-level objectives; a request attains them if it meets all that are given. Refused and failed ones never do."""

    ttft_ms: Annotated[Positive | None, Field(description="time to first token, ms")] = None
    tpot_ms: Annotated[Positive | None, Field(description="time per output token after the first, ms")] = None
    e2e_ms: Annotated[Positive | None, Field(description="end to end, ms")] = None
    attain: Annotated[Positive, Field(le=1, description="share of arrived requests that must meet them")] = 0.95


class RecordKeys(Spec):
    """Which of the larger tables a run keeps."""

    tokens: Annotated[Switch, Field(description="the client's stamp of every output token")] = True
    prompts: Annotated[
        Switch | Literal["auto"],
        Field(
            description="the token ids of every prompt; `auto` keeps them where prompts share prefixes or hold history"
        ),
    ] = "auto"


class PriorityMix(Spec):
    """Requests of several priorities, each drawn by itself with the chances given; for the ``priority`` policy."""

    values: Annotated[tuple[Whole, ...], Field(min_length=1, description="priorities; lower goes first")]
    shares: Annotated[tuple[Unit, ...], Field(min_length=1, description="of the requests, adding up to 1")]

    @model_validator(mode="after")
    def _shares_of_values(self) -> Self:
        if len(self.values) != len(self.shares):
            raise ValueError(
                f"found {len(self.values)} values and {len(self.shares)} shares; one share a value is allowed"
            )
        if not math.isclose(sum(self.shares), 1.0, abs_tol=1e-9):
            raise ValueError(f"the shares add up to {sum(self.shares):g}; 1 is allowed")
        return self

    def draw(self, n: int, seed: int) -> NDArray[np.int64]:
        """The priorities of ``n`` requests; the first ones of more are the same."""
        (rng,) = streams(seed, "priority", 1)
        picks = np.searchsorted(np.cumsum(self.shares[:-1]), rng.random(n), side="right")
        return np.array(self.values, dtype=np.int64)[picks]


class CalibrationKeys(Spec):
    """How the capacity and the step times of an engine are measured before its runs (and the capacity again after)."""

    warmup: Annotated[NonNegative, Field(description="seconds of the saturated loop that are left out")] = 2.0
    seconds: Annotated[Positive, Field(description="seconds of the saturated loop that are measured")] = 12.0
    grid_rounds: Annotated[Count, Field(description="how often the grid of step times is run")] = 2


class OutputKeys(Spec):
    """What the report of the study looks like."""

    style: Annotated[
        Literal["screen", "paper"], Field(description="of the figures; `paper` is one column of a journal wide")
    ] = "screen"


class WorkloadKeys(Spec):
    """The requests' lengths and contents; under ``workload`` the defaults of every experiment."""

    prompt: Annotated[Any, Field(description="law of the prompt lengths, or a fixed number of tokens")] = None
    output: Annotated[Any, Field(description="law of the output lengths, or a fixed number of tokens")] = None
    lengths: Annotated[
        Any, Field(description="both lengths from the trace or from a file, instead of prompt and output")
    ] = None
    natural: Annotated[Switch, Field(description="let the model end an output; otherwise lengths are pinned")] = False
    prompts: Annotated[Any, Field(description="what the prompts hold; random tokens by default")] = None
    predicted_output: Annotated[Any, Field(description="error of the predicted output length that policies see")] = None


class ExperimentKeys(WorkloadKeys):
    """One experiment: a load offered to one engine configuration, or a sweep of them."""

    name: Annotated[Name, Field(description="unique; names the folder of its results")]
    arrivals: Annotated[Any, Field(description="the arrival process; every list sweeps")]
    engine: dict[str, Any] = Field(default_factory=dict, description="engine options that differ from the study's")
    target: Annotated[Any, Field(description="a known queue in place of the engine, to test the instrument")] = None
    workload: dict[str, Any] = Field(default_factory=dict, description="the same keys as here, for use with an anchor")
    warmup: Annotated[Span, Field(description="left out of every statistic")] = Span(seconds=5)
    measure: Annotated[Span, Field(description="what the statistics are about")]
    cooldown: Annotated[
        Limit, Field(description="arrivals go on this long at most until the last measured request ends")
    ] = Limit(seconds=60)
    max_concurrency: Annotated[
        Count | None,
        Field(description="most requests in flight; the wait for it is recorded as cap_wait, in the latency"),
    ] = None
    timeout: Annotated[
        Limit | None, Field(description="how long after its intended arrival a client gives up and aborts its request")
    ] = None
    priority: Annotated[PriorityMix | None, Field(description="priorities of the requests; all 0 without it")] = None
    record: Annotated[RecordKeys, Field(description="which of the larger tables are kept")] = RecordKeys()
    replications: Annotated[Count, Field(description="runs of each point, each with new seeds")] = 1
    repeats: Annotated[Count, Field(description="runs of each replication with the same seeds")] = 1
    zip: Annotated[Switch, Field(description="pair the lists of a sweep instead of taking their product")] = False
    seed_group: Annotated[Name | None, Field(description="experiments of one group share arrivals and lengths")] = None
    compare: Annotated[tuple[Name, ...], Field(description="models held against the run")] = ()
    slo: dict[str, Any] = Field(default_factory=dict, description="objectives that differ from the study's")

    @field_validator("measure")
    @classmethod
    def _something_to_measure(cls, measure: Span) -> Span:
        if measure.empty():
            raise ValueError("found 0; more than 0 seconds, or at least 1 request, is allowed")
        return measure


class StudyKeys(Spec):
    """The top level of a study file."""

    version: Annotated[Literal[1], Field(description="of this format")]
    name: Annotated[Name | None, Field(description="folder of the results; the file's name by default")] = None
    model: Annotated[
        str | None,
        Field(description="preset, folder, GGUF file, hub id or random:<shape>; needed unless every target is a queue"),
    ] = None
    seed: Annotated[Whole, Field(description="every random stream of the study comes from it")] = 0
    engine: dict[str, Any] = Field(default_factory=dict, description="engine options of every experiment")
    calibration: CalibrationKeys = Field(default=CalibrationKeys(), description="how capacity and step times are found")
    workload: dict[str, Any] = Field(default_factory=dict, description="defaults of every experiment")
    slo: dict[str, Any] = Field(default_factory=dict, description="service-level objectives of every experiment")
    outputs: OutputKeys = Field(
        default=OutputKeys(), description="style of the report: `screen`, or `paper`, one column wide"
    )
    experiments: Annotated[list[Any], Field(description="what is run, in this order")]
