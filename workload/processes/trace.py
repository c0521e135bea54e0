"""Arrivals as they were recorded: a trace file, or a list of times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from workload.processes.base import RatedSpec, Times
from workload.schema import NonNegative
from workload.traces.read import read_trace
from workload.traces.shape import TraceShape


class Trace(RatedSpec, TraceShape):
    """A trace file replayed, at its own rate or at ``rate`` or ``load`` (by ``rate_by``); or ``times`` given as a list.

    A list of times keeps its zero; ``rate`` stretches it so that its n - 1 gaps have that mean rate.
    """

    own_rate: ClassVar[bool] = True
    process: Literal["trace"]
    path: Annotated[str | None, Field(description="the trace file")] = None
    times: Annotated[
        tuple[NonNegative, ...] | None,
        Field(min_length=1, description="arrivals in seconds, ascending, instead of a file"),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.times is None):
            found = "neither" if self.path is None else "both"
            raise ValueError(f"found {found} of 'path' and 'times'; exactly one is allowed")
        if self.path is not None and not Path(self.path).is_file():
            raise ValueError(f"path is {self.path!r}, which is no file")
        if self.times is not None:
            for i, (earlier, later) in enumerate(itertools.pairwise(self.times)):
                if later < earlier:
                    raise ValueError(f"times[{i + 1}] is {later}, before {earlier}; ascending times are allowed")
            for name in sorted(set(TraceShape.model_fields) & self.model_fields_set):
                raise ValueError(f"{name!r} is for trace files, not for 'times'")
        return self

    @property
    def mean_rate(self) -> float | None:
        """The rate asked for; ``None`` for a trace at its own rate, which only reading tells."""
        return self.rate

    def table(self, seed: int, scale: float = 1.0) -> pd.DataFrame:
        """The trace as it is replayed (see ``read_trace``), with lengths times ``scale``.

        Raises:
            ValueError: only a load is known, or the trace has a mistake (file and line).
        """
        self.refuse_load()
        if self.path is not None:
            shape = {name: getattr(self, name) for name in TraceShape.model_fields}
            return read_trace(self.path, **shape, rate=self.rate, scale=scale, seed=seed)
        times = np.array(self.times, dtype=np.float64)
        if self.rate is not None:
            span = float(times[-1] - times[0])
            if span == 0:
                raise ValueError(f"{len(times)} arrivals at one time have no rate that could be changed")
            times = times * ((len(times) - 1) / span / self.rate)
        missing = pd.array([pd.NA] * len(times), dtype="Int64")
        table = pd.DataFrame({"arrival_s": times, "prompt_tokens": missing, "output_tokens": missing})
        table.attrs["notes"] = [f"{len(times)} times given"]
        return table

    def chunks(self, seed: int) -> Iterator[Times]:
        yield self.table(seed)["arrival_s"].to_numpy()
