"""Arrivals that wait for answers: closed loops and multi-turn sessions. They have no timeline beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NoReturn, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from scipy.optimize import brentq

from workload.durations import DurationSpec, ExponentialTime, FixedTime, parse_duration
from workload.lengths import LengthSpec, mean_length, parse_lengths
from workload.processes.base import ArrivalSpec, RatedSpec, Times
from workload.schema import Count, NonNegative, Positive

NO_THINKING = FixedTime(dist="fixed", value=0.0)


Think = Annotated[SerializeAsAny[DurationSpec], BeforeValidator(parse_duration)]
Turns = Annotated[SerializeAsAny[LengthSpec], BeforeValidator(parse_lengths)]


class Closed(ArrivalSpec):
    """``clients`` clients, each with one request at a time: send, wait for the end, think, send again.

    The intended arrival is the end of the client's previous request plus its think time. ``load`` in place of ``think`` aims
    at a throughput: think times are exponential, with the mean at which one exponential server of the measured capacity
    would complete so much (the finite-source queue). With one seat that is nearly what comes out; an engine that batches
    answers a few clients slower than at its capacity and completes less. What counts is the throughput that was realised.
    """

    process: Literal["closed"]
    clients: Annotated[Count, Field(description="number of clients")]
    think: Annotated[Think, Field(description="law of the think times, or fixed seconds")] = NO_THINKING
    load: Annotated[
        Positive | None,
        Field(lt=1, description="throughput aimed at, as a share of the measured capacity; sets `think`"),
    ] = None
    stagger: Annotated[NonNegative, Field(description="seconds over which the first requests are spread")] = 1.0

    @model_validator(mode="after")
    def _one_of_think_and_load(self) -> Self:
        if self.load is not None and "think" in self.model_fields_set:
            raise ValueError("found both 'think' and 'load', from which think times follow; one of them is allowed")
        return self

    @property
    def mean_rate(self) -> float | None:
        """``None``: it depends on the system."""
        return None

    def at_rate(self, rate: float) -> Self:
        """The loop that ``load`` asks for where ``rate`` is load x capacity: with the think time that goes with it."""
        if self.load is None:
            raise ValueError(
                "a closed loop has no rate of its own: give clients and think time, or an open process such as poisson"
            )
        think = ExponentialTime(dist="exponential", mean=think_time(self.clients, self.load / rate, rate))
        return self.model_copy(update={"think": think, "load": None})

    def chunks(self, seed: int) -> Iterator[Times]:
        _no_timeline("closed", "each client waits for its answer")


def think_time(clients: int, service_s: float, rate: float) -> float:
    """Mean think time (s) with which ``clients`` complete ``rate`` requests/s at one exponential server (mean ``service_s``).

    Mean-value analysis of the finite-source queue (Reiser & Lavenberg, JACM 27, 1980); rate x service_s is below 1.
    """

    def completed(think_s: float) -> float:
        waiting = 0.0
        for n in range(1, clients + 1):
            response_s = service_s * (1 + waiting)
            throughput = n / (think_s + response_s)
            waiting = throughput * response_s
        return throughput

    return float(brentq(lambda think_s: completed(think_s) - rate, 0.0, clients / rate))


class Sessions(RatedSpec):
    """Partly open: sessions start as a Poisson process; inside one, each turn waits for the answer before and a think time.

    ``rate`` counts requests (turns) per second in the long run: sessions start at rate / mean turns. The workload's prompt
    law is the new tokens of each turn; the history comes on top.
    """

    process: Literal["sessions"]
    turns: Annotated[Turns, Field(description="law of the number of turns, or a fixed number")]
    think: Annotated[Think, Field(description="law of the think times between turns, or fixed seconds")] = NO_THINKING

    @property
    def session_rate(self) -> float:
        """Sessions started per second."""
        return self.required_rate() / mean_length(self.turns)

    def chunks(self, seed: int) -> Iterator[Times]:
        _no_timeline("sessions", "a turn waits for the answer before it")


def _no_timeline(process: str, reason: str) -> NoReturn:
    raise ValueError(
        f"arrivals of process {process!r} have no times beforehand: {reason}. Run them with the driver, or use an open "
        "process: poisson, constant, gamma, weibull, mmpp, piecewise, burst, trace"
    )
