"""Reports of guidellm (``benchmarks.json``): one run for each benchmark in it.

Requests lie under ``requests`` by status (successful, errored, incomplete). Their stamps (Unix seconds) are under
``info.timings``, in releases before 0.4 under ``scheduler_info``; ``targeted_start`` is the intended arrival. Only the first
and the last token have stamps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workload.importers.imported import (
    ENDED,
    ForeignRequest,
    ForeignRun,
    ImportMistake,
    number,
    read_json,
    unstamped_note,
    whole,
)

STATUSES: dict[str, str | None] = {"successful": ENDED, "errored": "failed", "incomplete": None}  # to finish_reason


def read_guidellm(path: Path) -> list[ForeignRun]:
    """All benchmarks of the report.

    Raises:
        ImportMistake: it is no such report, or holds no requests.
    """
    data = read_json(path)
    benchmarks = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise ImportMistake(f"{path}: no list under benchmarks; a benchmarks.json of guidellm is needed")
    return [_run(benchmark, index, f"{path}: benchmarks[{index}]") for index, benchmark in enumerate(benchmarks)]


def _run(benchmark: Any, index: int, where: str) -> ForeignRun:
    by_status = benchmark.get("requests") if isinstance(benchmark, Mapping) else None
    if not isinstance(by_status, Mapping):
        raise ImportMistake(f"{where}: no mapping under requests; its requests by status are needed")
    requests: list[ForeignRequest] = []
    unplaced = targeted = 0
    for status, reason in STATUSES.items():
        for i, raw in enumerate(by_status.get(status) or []):
            request, has_target = _request(raw, reason, f"{where}.requests.{status}[{i}]", len(requests))
            if math.isnan(request.intended_s):
                unplaced += 1
                continue
            targeted += has_target
            requests.append(request)
    notes = (f"{unplaced} requests were never begun and have no stamp: left out",) if unplaced else ()
    strategy = _mapping(_mapping(benchmark.get("config")).get("strategy"))
    strategy = strategy or _mapping(_mapping(benchmark.get("scheduler")).get("strategy"))
    facts = {"strategy": dict(strategy)}
    name = f"{index}-{strategy['type_']}" if "type_" in strategy else str(index)
    has_intended = bool(requests) and targeted == len(requests)
    return ForeignRun(name, requests, has_intended, facts, (*notes, *unstamped_note(requests)))


def _request(raw: Any, reason: str | None, where: str, index: int) -> tuple[ForeignRequest, bool]:
    """The request, and whether its intended arrival is known."""
    if not isinstance(raw, Mapping):
        raise ImportMistake(f"{where}: found {type(raw).__name__}; a mapping is allowed")
    info = _mapping(raw.get("info"))
    older = _mapping(raw.get("scheduler_info"))
    timings = {
        **_mapping(older.get("scheduler_timings")),
        **_mapping(older.get("request_timings")),
        **_mapping(info.get("timings")),
    }

    def stamp(*names: str) -> float:
        for name in names:
            if timings.get(name) is not None:
                return number(timings[name], f"{where}: {name}")
        return math.nan

    sent_s = stamp("request_start", "resolve_start")
    target_s = stamp("targeted_start")
    error = info.get("error") or older.get("error")
    request = ForeignRequest(
        request_id=str(raw.get("request_id") or info.get("request_id") or index),
        intended_s=sent_s if math.isnan(target_s) else target_s,
        sent_s=sent_s,
        first_token_s=stamp("first_token_iteration", "first_iteration"),
        last_token_s=stamp("last_token_iteration", "last_iteration"),
        finished_s=math.nan if reason is None else stamp("request_end", "resolve_end"),
        finish_reason=reason,
        prompt_tokens=_tokens(raw, "prompt_tokens", "input_metrics", where),
        output_tokens=_tokens(raw, "output_tokens", "output_metrics", where),
        error=None if error is None else str(error),
    )
    return request, not math.isnan(target_s)


def _tokens(raw: Mapping[str, Any], name: str, metrics: str, where: str) -> int | None:
    counted = _mapping(raw.get(metrics))
    for value in (raw.get(name), counted.get("total_tokens"), counted.get("text_tokens")):
        if value is not None:
            return whole(value, f"{where}: {name}")
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
