"""One measurement at a time on a machine: a second one waits, and says for whom."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.5


class MeasurementLock:
    """A context that only one process on this machine can be in.

    The lock is the kernel's (released when its holder dies, however); the file's text says who holds it.
    """

    def __init__(self, say: Callable[[str], None], path: Path | None = None) -> None:
        self._say = say
        self._path = path or Path(tempfile.gettempdir()) / f"latency-lab-{os.getuid()}.lock"

    def __enter__(self) -> MeasurementLock:
        self._file = open(self._path, "a+")
        told = False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    self._file.seek(0)
                    holder = self._file.read().strip() or "another process"
                    self._say(f"waiting: {holder} is measuring on this machine ({self._path})")
                    told = True
                time.sleep(POLL_S)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()}\n")
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
