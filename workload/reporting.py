"""What a person sees while a study runs: live on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from workload.ahead import Ahead
from workload.driver import Progress

PLAIN_LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class RunTitle:
    """What is told of a run before it: ``name``, its measured phase's end in seconds or else its requests, what follows."""

    name: str
    expected_s: float | None
    requests: int | None = None
    ahead: Ahead | None = None


class Reporter(Protocol):
    """Told what goes on."""

    def say(self, text: str) -> None:
        """One finished statement."""
        ...

    def begin(self, run: RunTitle) -> None:
        """A run begins."""
        ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None:
        """The run is over."""
        ...


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, run: RunTitle) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


class PlainLines:
    """A line at the start of a run and every ten seconds of ``clock``, for logs and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run: RunTitle | None = None
        self._next_s = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, run: RunTitle) -> None:
        self._run = run
        self._next_s = self._clock() + PLAIN_LINE_EVERY_S
        print(f"{run.name}: {extent(run)}", flush=True)

    def progress(self, progress: Progress) -> None:
        if self._run is not None and self._clock() >= self._next_s:
            self._next_s += PLAIN_LINE_EVERY_S
            print(describe(progress, self._run), flush=True)

    def end(self) -> None: ...


class LiveLine:
    """One statement that is rewritten twice a second, on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._run: RunTitle | None = None

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def begin(self, run: RunTitle) -> None:
        self._run = run
        self._live = Live(Text(run.name), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def progress(self, progress: Progress) -> None:
        if self._live is not None and self._run is not None:
            self._live.update(Text(describe(progress, self._run)), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def extent(run: RunTitle) -> str:
    """How long a run is, as far as that is known before it."""
    return f"about {run.expected_s:.0f} s" if run.expected_s is not None else f"{run.requests} requests"


def describe(progress: Progress, run: RunTitle) -> str:
    """Where ``run`` stands, in words; times in seconds, TTFT in ms. The end of a cooldown is not known beforehand."""
    elapsed_s = progress.elapsed_s
    if run.expected_s is None:
        where = f"{elapsed_s:.0f} s, {progress.ended} of {run.requests} requests"
    elif elapsed_s < run.expected_s:
        where = f"{progress.phase} {elapsed_s:.0f}/{run.expected_s:.0f} s"
    else:
        where = f"{progress.phase}, {elapsed_s - run.expected_s:.0f} s after the measured {run.expected_s:.0f} s"
    parts = [where]
    if elapsed_s > 0:
        parts.append(f"offered {progress.offered / elapsed_s:.1f}/s, completed {progress.completed / elapsed_s:.1f}/s")
    parts.append(f"in flight {progress.in_flight}, {progress.unanswered} of them without a token")
    if progress.capped:
        parts.append(f"{progress.capped} waiting for the cap")
    if not math.isnan(progress.recent_ttft_s):
        parts.append(f"TTFT {progress.recent_ttft_s * 1e3:.0f} ms")
    if run.ahead is not None:
        left_s = run.ahead.seconds + max(0.0, (run.expected_s or 0.0) - elapsed_s)
        least = "at least " if run.ahead.more or run.expected_s is None else ""
        parts.append(f"study: {least}{_minutes(left_s)} left")
    return f"{run.name}: {', '.join(parts)}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def make_reporter(quiet: bool) -> Reporter:
    """The reporter that fits standard output."""
    if quiet:
        return Quiet()
    return LiveLine() if sys.stdout.isatty() else PlainLines()
