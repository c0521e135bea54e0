"""What a person sees while a study runs: live on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import math
import sys
import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from workload.driver import Progress

PLAIN_LINE_EVERY_S = 10.0


class Reporter(Protocol):
    """Told what goes on."""

    def say(self, text: str) -> None:
        """One finished statement."""
        ...

    def begin(self, title: str, expected_s: float | None, requests: int | None = None) -> None:
        """A run begins; its measured phase ends after ``expected_s``, or the run with its last of ``requests``."""
        ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None:
        """The run is over."""
        ...


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, title: str, expected_s: float | None, requests: int | None = None) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


class PlainLines:
    """A line at the start of a run and every ten seconds, for logs and pipes."""

    def __init__(self) -> None:
        self._title = ""
        self._expected_s: float | None = None
        self._requests: int | None = None
        self._next_s = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, title: str, expected_s: float | None, requests: int | None = None) -> None:
        self._title, self._expected_s, self._requests = title, expected_s, requests
        self._next_s = time.monotonic() + PLAIN_LINE_EVERY_S
        print(f"{title}: {extent(expected_s, requests)}", flush=True)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s += PLAIN_LINE_EVERY_S
            print(f"{self._title}: {describe(progress, self._expected_s, self._requests)}", flush=True)

    def end(self) -> None: ...


class LiveLine:
    """One line that is rewritten twice a second, on a terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._title = ""
        self._expected_s: float | None = None
        self._requests: int | None = None

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def begin(self, title: str, expected_s: float | None, requests: int | None = None) -> None:
        self._title, self._expected_s, self._requests = title, expected_s, requests
        self._live = Live(Text(title), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def progress(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(
                Text(f"{self._title}: {describe(progress, self._expected_s, self._requests)}"), refresh=True
            )

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def extent(expected_s: float | None, requests: int | None) -> str:
    """How long a run is, as far as that is known before it."""
    return f"about {expected_s:.0f} s" if expected_s is not None else f"{requests} requests"


def describe(progress: Progress, expected_s: float | None, requests: int | None = None) -> str:
    """``progress`` in words; times in seconds, TTFT in ms. The end of a cooldown is not known beforehand."""
    ttft = "" if math.isnan(progress.recent_ttft_s) else f", TTFT {progress.recent_ttft_s * 1e3:.0f} ms"
    if expected_s is None:
        where = f"{progress.elapsed_s:.0f} s"
    elif progress.elapsed_s < expected_s:
        where = f"{progress.phase} {progress.elapsed_s:.0f}/{expected_s:.0f} s"
    else:
        where = f"{progress.phase}, {progress.elapsed_s - expected_s:.0f} s after the measured {expected_s:.0f} s"
    total = "" if requests is None else f" of {requests}"
    return f"{where}, sent {progress.sent}{total}, finished {progress.finished}, in flight {progress.in_flight}{ttft}"


def make_reporter(quiet: bool) -> Reporter:
    """The reporter that fits standard output."""
    if quiet:
        return Quiet()
    return LiveLine() if sys.stdout.isatty() else PlainLines()
