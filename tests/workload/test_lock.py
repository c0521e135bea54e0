"""Two measurements on one machine never overlap."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from workload.lock import MeasurementLock


def test_a_second_measurement_waits_for_the_first_and_says_for_whom(tmp_path: Path) -> None:
    path, said, order = tmp_path / "lock", [], []
    told = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    def second() -> None:
        with MeasurementLock(say, path):
            order.append("second")

    with MeasurementLock(said.append, path):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert told.wait(60)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]
    assert said == [f"waiting: process {os.getpid()} is measuring on this machine ({path})"]


def test_a_lock_whose_holder_died_is_free(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        MeasurementLock(print, tmp_path / "lock").__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    said: list[str] = []
    with MeasurementLock(said.append, tmp_path / "lock"):
        assert said == []
