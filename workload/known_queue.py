"""A target that is no engine: a queue whose answers textbooks know, so that the instrument itself can be tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator

from workload.durations import DurationSpec, parse_duration
from workload.schema import Count, Spec, SpecError, parse_tagged
from workload.seeds import streams

Service = Annotated[SerializeAsAny[DurationSpec], BeforeValidator(parse_duration)]

DRAWN_AT_ONCE = 4096


class KnownQueue(Spec):
    """A queue with ``servers`` servers, first come first served, in place of the engine. It needs no model and no
    calibration: a load is the rate over servers / mean service time, exactly. A request's one token comes at its end.
    """

    kind: Literal["stub"]
    service: Annotated[Service, Field(description="law of the service times, or fixed seconds")]
    servers: Annotated[Count, Field(description="how many are served at a time")] = 1

    @field_validator("service")
    @classmethod
    def _takes_time(cls, service: DurationSpec) -> DurationSpec:
        if not service.mean_s > 0:
            raise SpecError((), f"the mean is {service.mean_s:g} s; a mean service time above 0 is allowed")
        return service

    @property
    def capacity(self) -> float:
        """Requests per second that it can serve: servers / mean service time."""
        return self.servers / self.service.mean_s

    def service_times(self, seed: int) -> Iterator[float]:
        """Service times in seconds without end, from a stream that nothing else is drawn from."""
        (rng,) = streams(seed, "service", 1)
        while True:
            yield from self.service.draw(DRAWN_AT_ONCE, rng).tolist()


TARGETS: dict[str, type[KnownQueue]] = {"stub": KnownQueue}


def parse_target(data: Mapping[str, Any]) -> KnownQueue:
    """The typed target of ``{"kind": "stub", ...}``.

    Raises:
        SpecError: (a ValueError) naming the key, what was found and what is allowed.
    """
    return parse_tagged(TARGETS, "kind", data)
