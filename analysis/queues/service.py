"""One way to say what the service times (or the gaps between arrivals) are, for every model that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.queues.phase_type import PhaseType, erlang, exponential, hyperexponential, two_moment
from analysis.queues.service_base import Moments, Service
from analysis.queues.service_kinds import Deterministic, Frozen, Sample

__all__ = [
    "Deterministic",
    "Frozen",
    "Moments",
    "PhaseType",
    "Sample",
    "Service",
    "as_service",
    "erlang",
    "exponential",
    "hyperexponential",
    "two_moment",
]

_FORMS = (
    "a tuple of moments (ES, ES2[, ES3]), a mapping {'ES': .., 'ES2': ..} or {'ES': .., 'scv': ..}, a phase-type "
    "(alpha, T), a frozen scipy.stats distribution, or a list or array of measured times"
)


def as_service(service: Any) -> Service:
    """The distribution meant by ``service``, in seconds.

    Args:
        service: one of: a ``Service``; a *tuple* of two or three numbers, the moments (E[S], E[S^2][, E[S^3]]); a
            mapping with ``ES`` and ``ES2`` or ``scv`` (and perhaps ``ES3``); a tuple ``(alpha, T)``, phase-type; a
            frozen ``scipy.stats`` distribution (exponential and Erlang become phase-type); a *list*, array or column
            of measured times.

    Raises:
        ValueError: none of these, or one that no distribution of times can have.

    >>> as_service((2.0, 8.0)).scv
    1.0
    >>> as_service([1.0, 2.0, 3.0]).mean
    2.0
    """
    if isinstance(service, Service):
        return service
    if isinstance(service, Mapping):
        return _from_mapping(service)
    if isinstance(service, tuple):
        return _from_tuple(service)
    if hasattr(service, "dist") and hasattr(service, "sf"):
        return _from_frozen(service)
    if isinstance(service, (str, bytes)) or np.ndim(service) == 0:
        raise ValueError(f"service = {service!r}: give {_FORMS}")
    return Sample(service)


def _from_tuple(service: tuple[Any, ...]) -> Service:
    if len(service) == 2 and np.ndim(service[0]) == 1:
        return PhaseType(*service)
    if len(service) in (2, 3) and all(np.ndim(x) == 0 for x in service):
        return Moments(*(float(x) for x in service))
    raise ValueError(f"a tuple of {len(service)} is no service distribution: give {_FORMS}")


def _from_mapping(service: Mapping[str, Any]) -> Service:
    unknown = set(service) - {"ES", "ES2", "ES3", "scv"}
    if unknown or "ES" not in service or ("ES2" in service) == ("scv" in service):
        raise ValueError(f"service has keys {sorted(service)}: give ES with either ES2 or scv, and perhaps ES3")
    mean = float(service["ES"])
    second = float(service["ES2"]) if "ES2" in service else (1.0 + float(service["scv"])) * mean**2
    return Moments(mean, second, None if service.get("ES3") is None else float(service["ES3"]))


def _from_frozen(frozen: Any) -> Service:
    if not hasattr(frozen.dist, "pdf"):
        raise ValueError(
            f"service = {frozen.dist.name}, a discrete distribution: give a list of times, each as often as it occurs"
        )
    plain = "loc" not in frozen.kwds and len(frozen.args) <= (0 if frozen.dist.name == "expon" else 1)
    if plain and frozen.dist.name == "expon":
        return exponential(float(frozen.mean()))
    if plain and frozen.dist.name in ("gamma", "erlang"):
        shape = float(frozen.args[0] if frozen.args else frozen.kwds["a"])
        if shape == int(shape) and shape <= 30:
            return erlang(int(shape), float(frozen.mean()))
    return Frozen(frozen)
