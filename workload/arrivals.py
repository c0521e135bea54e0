"""Arrival processes: the whole timeline of a run, drawn before it starts from its own seeded stream.

``arrival_times`` is the one entry. Every process is a small frozen model under its YAML name (in ``processes/``). The random
ones turn one unit-rate sequence into times at the rate wanted, so that the points of a load sweep share their randomness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workload.processes.base import ArrivalSpec, Times, collect
from workload.processes.modulated import MMPP, Piecewise
from workload.processes.renewal import Burst, Constant, Gamma, Poisson, RenewalSpec, Weibull, settled
from workload.processes.responsive import Closed, Sessions
from workload.processes.trace import Trace
from workload.schema import parse_tagged

PROCESSES: dict[str, type[ArrivalSpec]] = {
    "poisson": Poisson,
    "constant": Constant,
    "gamma": Gamma,
    "weibull": Weibull,
    "mmpp": MMPP,
    "piecewise": Piecewise,
    "burst": Burst,
    "trace": Trace,
    "closed": Closed,
    "sessions": Sessions,
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
        return collect(settled(parsed, count, duration, seed).chunks(seed), count, None)
    return collect(parsed.chunks(seed), n, duration)
