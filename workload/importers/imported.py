"""What every importer makes of a foreign result file, and how that becomes a run directory.

What the file does not say stays missing: no engine stamps, no gauge, often no intended arrivals. Where a tool recorded no
intended arrival, the moment of sending stands in its place and run.json says so: such a run can't show the generator's lag.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workload.records import REQUESTS, TOKENS, lag_verdict
from workload.run_directory import RunDirectory

NO_ENGINE = "the tool records nothing of the engine: no stamps, steps or gauge"
NO_INTENDED = "no intended arrivals: the moments of sending stand in their place, so the generator's lag is unknown"
ENDED = "stop"  # of answers that came to their end, where the tool does not say which end


class ImportMistake(ValueError):
    """A file that is not what it was said to be; names the file and the place."""


@dataclass(frozen=True)
class ForeignRequest:
    """One request as another tool recorded it; seconds on the tool's clock, nan or ``None`` where it says nothing.

    ``token_s`` has a stamp of every output token, or is ``None``. ``finish_reason`` as in the ``requests`` table.
    """

    request_id: str
    intended_s: float
    sent_s: float
    first_token_s: float
    last_token_s: float
    finished_s: float
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    token_s: tuple[float, ...] | None = None
    error: str | None = None
    session_id: str | None = None
    turn: int | None = None
    phase: str = "measure"


@dataclass(frozen=True)
class ForeignRun:
    """One run of another tool. ``facts`` are the tool's own words about it; ``notes`` what was decided on the way."""

    name: str
    requests: Sequence[ForeignRequest]
    has_intended: bool
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()


def write_run(run: ForeignRun, path: Path, *, tool: str, source: Path) -> Path:
    """Write ``run`` as the run directory ``path``; its zero is the first arrival.

    Raises:
        FileExistsError: a run is there already.
        ImportMistake: it holds no measured request.
    """
    measured = [request.intended_s for request in run.requests if request.phase == "measure"]
    if not measured:
        raise ImportMistake(f"{source}: {run.name} holds no measured request")
    requests = sorted(run.requests, key=lambda request: request.intended_s)
    origin_s = requests[0].intended_s
    directory = RunDirectory(path)
    rows = [_row(request, origin_s, run.has_intended) for request in requests]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), directory.path / "requests.parquet", compression="zstd")
    stamped = [request for request in requests if request.token_s is not None]
    if stamped:
        tokens = [
            {"request_id": request.request_id, "token_s": [stamp - origin_s for stamp in request.token_s or ()]}
            for request in stamped
        ]
        pq.write_table(
            pa.Table.from_pylist(tokens, schema=TOKENS), directory.path / "tokens.parquet", compression="zstd"
        )
    directory.write_meta(_facts(run, rows, min(measured) - origin_s, max(measured) - origin_s, tool, source))
    return directory.complete()


def _facts(
    run: ForeignRun, rows: Sequence[dict[str, Any]], first_s: float, last_s: float, tool: str, source: Path
) -> dict[str, Any]:
    stamps = [row[name] for row in rows for name in ("intended_s", "finished_s") if not math.isnan(row[name])]
    lags = [row["lag"] for row in rows if not math.isnan(row["lag"])]
    unknown = {"count": 0, "verdict": "unknown: the tool records no intended arrivals"}
    return {
        "kind": "measurement",
        "study": f"imported-{tool}",
        "experiment": tool,
        "point": run.name,
        "replication": 0,
        "imported": {"tool": tool, "file": source.name, "facts": run.facts},
        "notes": [*run.notes, NO_ENGINE, *([] if run.has_intended else [NO_INTENDED])],
        "window": {
            "measure_start_s": first_s,
            "measure_end_s": math.nextafter(last_s, math.inf) if last_s > first_s else max(stamps),
            "end_s": max(stamps),
        },
        "counts": dict(Counter(row["finish_reason"] or "censored" for row in rows)),
        "lag": lag_verdict(lags) if run.has_intended else unknown,
        "status": "complete",
        "error": None,
    }


def _row(request: ForeignRequest, origin_s: float, has_intended: bool) -> dict[str, Any]:
    """A row of the ``requests`` table; columns that no tool knows stay null (nan for stamps)."""
    names = ("intended_s", "sent_s", "first_token_s", "last_token_s", "finished_s")
    same = ("request_id", "phase", "finish_reason", "error", "prompt_tokens", "output_tokens", "session_id", "turn")
    row: dict[str, Any] = {field.name: math.nan for field in REQUESTS if field.type == pa.float64()}
    row |= {name: getattr(request, name) - origin_s for name in names}
    row |= {name: getattr(request, name) for name in same}
    return {**row, "lag": request.sent_s - request.intended_s if has_intended else math.nan}


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ImportMistake: it can't be read, or isn't JSON (with the line).
    """
    return parse_json(read_text(path), f"{path}")


def read_text(path: Path) -> str:
    """The text of a file; raises ImportMistake when it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ImportMistake(f"{path}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ImportMistake(f"{path}: not UTF-8: {error}") from None


def parse_json(text: str, where: str) -> Any:
    """``text`` as JSON; raises ImportMistake with ``where`` it stands."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ImportMistake(f"{where}: not JSON: {error}") from None


def number(value: Any, where: str) -> float:
    """A number of the file; nan where it holds nothing.

    Raises:
        ImportMistake: it holds something else.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ImportMistake(f"{where}: found {value!r}; a number is allowed")
    return float(value)


def whole(value: Any, where: str) -> int | None:
    """A whole number of at least 0; ``None`` where the file holds nothing."""
    found = number(value, where)
    if math.isnan(found):
        return None
    if found < 0 or found != int(found):
        raise ImportMistake(f"{where}: found {value!r}; a whole number of at least 0 is allowed")
    return int(found)


def token_stamps(first_s: float, gaps_s: Sequence[float], output_tokens: int | None) -> tuple[float, ...] | None:
    """A stamp of each token from the gaps between messages; ``None`` where messages and tokens differ in number."""
    if math.isnan(first_s) or output_tokens != len(gaps_s) + 1:
        return None
    stamps = [first_s]
    for gap_s in gaps_s:
        stamps.append(stamps[-1] + gap_s)
    return tuple(stamps)


def unstamped_note(requests: Sequence[ForeignRequest]) -> tuple[str, ...]:
    """Says how many answers have no stamp of each token."""
    without = sum(request.token_s is None and (request.output_tokens or 0) > 0 for request in requests)
    if not without:
        return ()
    return (
        f"{without} of {len(requests)} answers have no stamp of each token, only of messages or of the first and last",
    )
