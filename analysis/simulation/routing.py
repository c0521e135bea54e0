"""Which of several equal servers, each with a line of its own, the next job goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Literal

import numpy as np

Routing = Literal["random", "round_robin", "jsq", "power_of_two"]
ROUTINGS: tuple[Routing, ...] = ("random", "round_robin", "jsq", "power_of_two")


def chooser(routing: Routing, present: Sequence[Callable[[], int]], rng: np.random.Generator) -> Callable[[], int]:
    """The number of the server that the next job goes to, as a function of the moment.

    Args:
        routing: ``random``, ``round_robin``, ``jsq`` (fewest jobs present, ties at random) or ``power_of_two`` (the emptier
            of two taken at random; Mitzenmacher, IEEE TPDS 12, 2001).
        present: how many jobs each server has now, waiting ones included.

    Raises:
        ValueError: an unknown routing, or no server.
    """
    n = len(present)
    if routing not in ROUTINGS:
        raise ValueError(f"routing is {routing!r}; it must be one of {', '.join(ROUTINGS)}")
    if n < 1:
        raise ValueError(f"replicas is {n}; there must be at least 1")
    if n == 1:
        return lambda: 0
    if routing == "random":
        return lambda: int(rng.integers(n))
    if routing == "round_robin":
        turns = cycle(range(n))
        return lambda: next(turns)
    if routing == "power_of_two":

        def emptier_of_two() -> int:
            first = int(rng.integers(n))
            second = (first + 1 + int(rng.integers(n - 1))) % n
            return first if present[first]() <= present[second]() else second

        return emptier_of_two

    def emptiest() -> int:
        counts = [count() for count in present]
        least = min(counts)
        ties = [server for server, number in enumerate(counts) if number == least]
        return ties[0] if len(ties) == 1 else ties[int(rng.integers(len(ties)))]

    return emptiest
