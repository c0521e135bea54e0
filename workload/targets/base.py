"""What the driver needs of whatever it loads: a real engine process, an engine in virtual time, a known queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from engine.outputs import RequestStats
from engine.sequence import Request


class TargetFailed(RuntimeError):
    """The target broke down in mid-run; the message says how."""


class TargetEvent(NamedTuple):
    """News of one request.

    ``token_ids`` are new output tokens; ``finish_reason`` is set with the last news (``stop``, ``length``, ``aborted``,
    ``refused``), and then ``stats`` holds the engine's own stamps where the target has any.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stats: RequestStats | None = None
    error: str | None = None


class Target(Protocol):
    """The contract of a target. Time belongs to it: real for a process, virtual for an inline engine.

    All times are seconds on ``now``'s clock. One thread uses a target.
    """

    info: dict[str, Any]

    def now(self) -> float: ...

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        """Begin a run from an empty, cold-cached state; record the engine's tables into ``directory``."""
        ...

    def submit(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def wait(self, until_s: float) -> None:
        """Return when news may be there or, precisely, at ``until_s``, or sooner; the caller asks again."""
        ...

    def next_events(self) -> list[TargetEvent]:
        """The news of one message (one engine step), oldest first; empty when none has arrived."""
        ...

    def finish_run(self) -> dict[str, Any]:
        """End the recording; returns what the engine counted."""
        ...

    def clock_offset(self) -> dict[str, float]:
        """Bounds ``low_s`` and ``high_s`` on the engine's clock minus ours."""
        ...

    def close(self) -> None: ...
