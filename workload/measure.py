"""One run: a loop of requests driven against a target, every table and fact of it in a directory of its own."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workload import facts
from workload.driver import Driver, DriveResult, Progress
from workload.loops import Loop
from workload.phases import Phases
from workload.records import lag_verdict
from workload.run_directory import ClientTables, RunDirectory
from workload.targets.base import Target

LEAD_S = 0.1  # between the order to start recording and the run's origin


def measure(
    target: Target,
    loop: Loop,
    phases: Phases,
    path: Path,
    *,
    about: dict[str, Any],
    cooldown_s: float = 60.0,
    max_concurrency: int | None = None,
    timeout_s: float | None = None,
    record_tokens: bool = True,
    record_prompts: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Run ``loop`` against ``target`` and return the run's directory (design: "the run directory").

    Args:
        path: where the complete run goes.
        about: what run.json says beside the facts observed here (names, the resolved spec, the rate).
        cooldown_s: how long the last measured requests are waited for.
        max_concurrency, timeout_s: see ``workload.driver.Driver``.
        record_tokens, record_prompts: whether the tables ``tokens`` and ``prompts`` are written.

    Raises:
        TargetFailed: the target died; what was recorded stays in ``<path>.partial``, labelled failed.
        KeyboardInterrupt: likewise, labelled interrupted.
    """
    with _no_garbage_collection():
        return _measure(
            target,
            loop,
            phases,
            RunDirectory(path),
            about,
            cooldown_s=cooldown_s,
            max_concurrency=max_concurrency,
            timeout_s=timeout_s,
            record_tokens=record_tokens,
            record_prompts=record_prompts,
            on_progress=on_progress,
        )


def _measure(
    target: Target,
    loop: Loop,
    phases: Phases,
    directory: RunDirectory,
    about: dict[str, Any],
    *,
    cooldown_s: float,
    max_concurrency: int | None,
    timeout_s: float | None,
    record_tokens: bool,
    record_prompts: bool,
    on_progress: Callable[[Progress], None] | None,
) -> Path:
    meta = {**about, **_facts_before(target), "status": "running", "error": None}
    directory.write_meta(meta)
    offset_before = target.clock_offset()
    origin_s = target.now() + LEAD_S
    meta["wall_clock_anchor"] = {"unix_s": time.time() + LEAD_S, "monotonic_s": origin_s}
    tables = ClientTables(directory.path, origin_s, record_prompts, record_tokens=record_tokens)
    try:
        target.start_run(directory.path, origin_s)
        driver = Driver(
            target,
            loop,
            phases,
            tables,
            origin_s=origin_s,
            cooldown_limit_s=cooldown_s,
            max_concurrency=max_concurrency,
            timeout_s=timeout_s,
            on_progress=on_progress,
        )
        result = driver.run()
        meta["recording"] = target.finish_run()
        meta["clock"] = {"before": offset_before, "after": target.clock_offset()}
    except BaseException as error:
        tables.close()
        interrupted = isinstance(error, KeyboardInterrupt)
        meta["status"] = "interrupted" if interrupted else "failed"
        meta["error"] = "interrupted by the user" if interrupted else str(error)
        directory.write_meta(meta)
        if interrupted:
            target.finish_run()
        raise
    tables.close()
    directory.write_meta({**meta, **_facts_after(result), "loop": loop.facts(), "status": "complete"})
    return directory.complete()


def _facts_before(target: Target) -> dict[str, Any]:
    return {
        "versions": facts.versions(),
        "git": facts.git_state(Path(__file__).parent),
        "machine": facts.machine(),
        "load_before": facts.load_state(),
        "affinity": {"generator": sorted(os.sched_getaffinity(0)), "engine": target.info.get("cores")},
        "engine": {key: value for key, value in target.info.items() if key != "fingerprints"},
        "fingerprints": target.info.get("fingerprints"),
    }


def _facts_after(result: DriveResult) -> dict[str, Any]:
    return {
        "window": {
            "measure_start_s": result.measure_start_s,
            "measure_end_s": result.measure_end_s,
            "end_s": result.end_s,
        },
        "counts": result.counts,
        "lag": lag_verdict(result.lags),
        "load_after": facts.load_state(),
    }


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """No collector pauses between a deadline and its request; the one pause that this costs comes before the run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
