"""Arrivals that wait for answers: closed loops and multi-turn sessions. They have no timeline beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NoReturn, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from workload.durations import DurationSpec, FixedTime, parse_duration
from workload.lengths import LengthSpec, mean_length, parse_lengths
from workload.processes.base import ArrivalSpec, RatedSpec, Times
from workload.schema import Count, NonNegative

NO_THINKING = FixedTime(dist="fixed", value=0.0)


Think = Annotated[SerializeAsAny[DurationSpec], BeforeValidator(parse_duration)]
Turns = Annotated[SerializeAsAny[LengthSpec], BeforeValidator(parse_lengths)]


class Closed(ArrivalSpec):
    """``clients`` clients, each with one request at a time: send, wait for the end, think, send again.

    The intended arrival is the end of the client's previous request plus its think time.
    """

    process: Literal["closed"]
    clients: Annotated[Count, Field(description="number of clients")]
    think: Annotated[Think, Field(description="law of the think times, or fixed seconds")] = NO_THINKING
    stagger: Annotated[NonNegative, Field(description="seconds over which the first requests are spread")] = 1.0

    @property
    def mean_rate(self) -> float | None:
        """``None``: it depends on the system."""
        return None

    def at_rate(self, rate: float) -> Self:
        raise ValueError(
            "a closed loop has no rate of its own: give clients and think time, or an open process such as poisson"
        )

    def chunks(self, seed: int) -> Iterator[Times]:
        _no_timeline("closed", "each client waits for its answer")


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
