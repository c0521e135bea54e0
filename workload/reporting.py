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

    def begin(self, title: str, expected_s: float) -> None:
        """A run begins; it is expected to take this long."""
        ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None:
        """The run is over."""
        ...


class Quiet:
    """Says nothing."""

    def say(self, text: str) -> None: ...

    def begin(self, title: str, expected_s: float) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def end(self) -> None: ...


class PlainLines:
    """A line at the start of a run and every ten seconds, for logs and pipes."""

    def __init__(self) -> None:
        self._title = ""
        self._expected_s = math.nan
        self._next_s = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, title: str, expected_s: float) -> None:
        self._title, self._expected_s = title, expected_s
        self._next_s = time.monotonic() + PLAIN_LINE_EVERY_S
        print(f"{title}: about {expected_s:.0f} s", flush=True)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s += PLAIN_LINE_EVERY_S
            print(f"{self._title}: {describe(progress, self._expected_s)}", flush=True)

    def end(self) -> None: ...


class LiveLine:
    """One line that is rewritten twice a second, on a terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._live: Live | None = None
        self._title = ""
        self._expected_s = math.nan

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def begin(self, title: str, expected_s: float) -> None:
        self._title, self._expected_s = title, expected_s
        self._live = Live(Text(title), console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def progress(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(Text(f"{self._title}: {describe(progress, self._expected_s)}"), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(progress: Progress, expected_s: float) -> str:
    """``progress`` in words; times in seconds, TTFT in ms."""
    ttft = "" if math.isnan(progress.recent_ttft_s) else f", TTFT {progress.recent_ttft_s * 1e3:.0f} ms"
    return (
        f"{progress.phase} {progress.elapsed_s:.0f}/{expected_s:.0f} s, sent {progress.sent}, "
        f"finished {progress.finished}, in flight {progress.in_flight}{ttft}"
    )


def make_reporter(quiet: bool) -> Reporter:
    """The reporter that fits standard output."""
    if quiet:
        return Quiet()
    return LiveLine() if sys.stdout.isatty() else PlainLines()
