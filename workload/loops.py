"""Where a run's requests come from: a timeline drawn beforehand (open loop), clients that wait (closed loop), batches."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.sampling_params import SamplingParams
from engine.sequence import Request


class Offer(NamedTuple):
    """A request and the moment it is meant to be sent, in seconds from the run's origin."""

    intended_s: float
    request: Request
    session_id: str | None = None
    turn: int | None = None


class Loop(Protocol):
    """The contract of a source of requests."""

    @property
    def exhausted(self) -> bool:
        """Nothing is due now or later, whatever ends."""
        ...

    def next_due(self) -> float:
        """When the next request is meant to be sent; inf while that depends on an answer."""
        ...

    def take(self) -> Offer:
        """The request that is due next."""
        ...

    def on_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """New output tokens of a request, in order."""
        ...

    def on_end(self, request_id: str, now_s: float) -> None:
        """A request is over (finished, refused or failed)."""
        ...

    def facts(self) -> dict[str, int]:
        """What the loop counted on the way, for run.json."""
        ...


class PlainLoop:
    """What most loops do with an answer's tokens (nothing) and have to tell (nothing)."""

    def on_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """The answer changes nothing."""

    def facts(self) -> dict[str, int]:
        return {}


class Requests(Protocol):
    """Requests by number; past the end they begin anew under other ids."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Request: ...


class RequestList:
    """Requests number 0, 1, 2, ... of a run: prompts and lengths drawn beforehand, equal on every target.

    Args:
        prompts: int32 token ids of each request.
        output_tokens: tokens each request generates; with ``natural`` the most it may.
        natural: let the model end an output itself.
        seed: of the sampling streams.
        predicted: output lengths that policies may see.
        priorities: of each request, lower first; ``None`` is 0 for all.
    """

    def __init__(
        self,
        prompts: Sequence[NDArray[np.int32]],
        output_tokens: Sequence[int] | NDArray[np.int64],
        *,
        natural: bool = False,
        seed: int = 0,
        predicted: Sequence[int] | NDArray[np.int64] | None = None,
        priorities: Sequence[int] | NDArray[np.int64] | None = None,
        prefix: str = "",
    ) -> None:
        if len(prompts) != len(output_tokens):
            raise ValueError(f"{len(prompts)} prompts but {len(output_tokens)} output lengths")
        self._prompts = prompts
        self._output_tokens = output_tokens
        self._natural = natural
        self._seed = seed
        self._predicted = predicted
        self._priorities = priorities
        self._prefix = prefix

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Request:
        """Request ``index``; past the end the list begins anew with other ids."""
        at = index % len(self._prompts)
        params = SamplingParams(
            temperature=1.0 if self._natural else 0.0,
            seed=self._seed + index,
            max_tokens=int(self._output_tokens[at]),
            ignore_eos=not self._natural,
        )
        predicted = None if self._predicted is None else int(self._predicted[at])
        priority = 0 if self._priorities is None else int(self._priorities[at])
        return Request(f"{self._prefix}{index}", self._prompts[at].tolist(), params, priority, predicted)


class OpenLoop(PlainLoop):
    """Sends request i at ``times[i]``, whatever becomes of the others. Requests are made now, not when they are due."""

    def __init__(self, times: NDArray[np.float64], requests: Requests) -> None:
        if len(times) > len(requests):
            raise ValueError(f"{len(times)} arrivals but only {len(requests)} requests")
        self._times = times.tolist()
        self._requests = [requests[index] for index in range(len(times))]
        self._next = 0

    @property
    def exhausted(self) -> bool:
        return self._next == len(self._times)

    def next_due(self) -> float:
        return math.inf if self.exhausted else float(self._times[self._next])

    def take(self) -> Offer:
        index = self._next
        self._next += 1
        return Offer(self._times[index], self._requests[index])

    def on_end(self, request_id: str, now_s: float) -> None:
        """An open loop does not care."""


class ClosedLoop(PlainLoop):
    """``clients`` clients: each sends, waits for the end of its request, thinks, and sends again.

    The intended moment is the end of the client's previous request plus its think time; starts are spread over
    ``stagger_s``.

    Args:
        think: gives the next think time of a client, in seconds; ``None`` is no thinking.
    """

    def __init__(
        self,
        clients: int,
        requests: Requests,
        *,
        think: Callable[[int], float] | None = None,
        stagger_s: float = 0.0,
    ) -> None:
        if clients < 1:
            raise ValueError(f"clients is {clients}; a closed loop has at least one")
        self._requests = requests
        self._think = think
        self._due = [(client * stagger_s / clients, client) for client in range(clients)]
        self._owner: dict[str, int] = {}
        self._next = 0

    @property
    def exhausted(self) -> bool:
        return False

    def next_due(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def take(self) -> Offer:
        due_s, client = heapq.heappop(self._due)
        request = self._requests[self._next]
        self._next += 1
        self._owner[request.request_id] = client
        return Offer(due_s, request, session_id=f"client-{client}")

    def on_end(self, request_id: str, now_s: float) -> None:
        client = self._owner.pop(request_id)
        heapq.heappush(self._due, (now_s + (self._think(client) if self._think else 0.0), client))


class BatchLoop(PlainLoop):
    """Batches one after the other, each sent at once when the one before has ended: a designed experiment on step times.

    Args:
        pauses: seconds to wait before each batch (none where nothing is given).
    """

    def __init__(self, batches: Sequence[Sequence[Request]], pauses: Sequence[float] | None = None) -> None:
        self._batches = [list(batch) for batch in batches]
        self._pauses = [0.0] * len(batches) if pauses is None else list(pauses)
        if len(self._pauses) != len(self._batches):
            raise ValueError(f"{len(self._pauses)} pauses for {len(self._batches)} batches; give one for each")
        self._index = -1
        self._left: list[Request] = []
        self._in_flight = 0
        self._due_s = 0.0
        self._start_next(0.0)

    def __len__(self) -> int:
        """Requests of all batches."""
        return sum(len(batch) for batch in self._batches)

    @property
    def exhausted(self) -> bool:
        return self._index >= len(self._batches)

    def next_due(self) -> float:
        return self._due_s if self._left else math.inf

    def take(self) -> Offer:
        self._in_flight += 1
        return Offer(self._due_s, self._left.pop(0))

    def on_end(self, request_id: str, now_s: float) -> None:
        self._in_flight -= 1
        if not self._in_flight and not self._left:
            self._start_next(now_s)

    def _start_next(self, now_s: float) -> None:
        self._index += 1
        if not self.exhausted:
            self._due_s = now_s + self._pauses[self._index]
            self._left = list(self._batches[self._index])
