"""What may be done to a trace before it is replayed: order, zero lengths, equal stamps, window, limit, rate, length scale.

Each step says in a note what it changed; burstiness is noted before and after.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from workload.schema import Count, NonNegative, Positive, Spec, Whole
from workload.seeds import streams
from workload.traces.raw import RawTrace, TraceError

Times = NDArray[np.float64]


class TraceShape(Spec):
    """The options of a trace that do not depend on a rate."""

    format: Annotated[
        Literal["auto", "azure", "mooncake", "burstgpt", "servegen", "csv", "jsonl", "parquet"],
        Field(description="of the file; auto: by its name and columns, and says so"),
    ] = "auto"
    columns: Annotated[
        dict[Literal["arrival", "prompt", "output", "hash_ids"], str],
        Field(default_factory=dict, description="names of the columns of a csv, jsonl or parquet trace"),
    ]
    time_unit: Annotated[
        Literal["auto", "s", "ms", "us", "ns"],
        Field(description="of the arrival column; auto: numbers are seconds, text is dates"),
    ] = "auto"
    unsorted: Annotated[
        Literal["sort", "refuse"], Field(description="rows that go back in time: stable sort, or an error")
    ] = "sort"
    zero_output: Annotated[
        Literal["drop", "keep"], Field(description="rows without output tokens (failed requests)")
    ] = "drop"
    zero_prompt: Annotated[Literal["refuse", "drop"], Field(description="rows without prompt tokens")] = "refuse"
    equal_stamps: Annotated[
        Literal["keep", "spread", "jitter"],
        Field(description="requests with one stamp: together, evenly or at random within the stamps' resolution"),
    ] = "keep"
    window: Annotated[
        tuple[NonNegative, Positive] | None,
        Field(description="seconds [from, to) since the trace's start; from becomes 0"),
    ] = None
    limit: Annotated[Count | None, Field(description="rows at most")] = None
    rate_by: Annotated[
        Literal["time", "thin"],
        Field(description="how a rate is reached: time stretched, or requests left out at random"),
    ] = "time"

    @model_validator(mode="after")
    def _window_in_order(self) -> Self:
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError(f"window is {list(self.window)}; [from, to) with from < to is allowed")
        return self


class TraceOptions(TraceShape):
    """Every option of ``read_trace``."""

    rate: Annotated[Positive | None, Field(description="requests/s; left out: the trace's own")] = None
    scale: Annotated[Positive, Field(description="factor on both lengths, then rounded, at least 1")] = 1.0
    seed: Annotated[Whole, Field(description="of thinning, jitter and drawn traces")] = 0


def shaped(raw: RawTrace, options: TraceOptions) -> tuple[RawTrace, list[str]]:
    """``raw`` after every step, and the notes.

    Raises:
        TraceError: nothing left, rows out of order where that is refused, or a rate that can't be reached.
    """
    notes = list(raw.notes)
    before = burstiness(np.sort(raw.arrival_s))
    thin_rng, jitter_rng, _ = streams(options.seed, "arrivals", 3)
    raw = _ordered(raw, options, notes)
    raw = _without_zeros(raw, options, notes)
    raw = _with_equal_stamps(raw, options, jitter_rng, notes)
    raw, seconds = _cut(raw, options, notes)
    if not len(raw.arrival_s):
        raise TraceError(f"{raw.path}: no rows left after {'; '.join(notes)}")
    raw = _at_rate(raw, options, seconds, thin_rng, notes)
    raw = _scaled(raw, options, notes)
    after = burstiness(raw.arrival_s)
    notes.append(
        f"gap CV {before[0]:.3g} in the file, {after[0]:.3g} as replayed; "
        f"index of dispersion over 10 mean gaps {before[1]:.3g}, {after[1]:.3g}"
    )
    return raw, notes


def burstiness(times: Times) -> tuple[float, float]:
    """(coefficient of variation of the gaps, index of dispersion of counts in bins of 10 mean gaps); nan where undefined."""
    gaps = np.diff(times)
    if len(gaps) < 2 or gaps.sum() == 0:
        return float("nan"), float("nan")
    width = 10 * gaps.mean()
    bins = int((times[-1] - times[0]) // width)
    if bins < 2:
        return float(gaps.std() / gaps.mean()), float("nan")
    at = ((times - times[0]) // width).astype(np.int64)
    counts = np.bincount(at[at < bins], minlength=bins)
    return float(gaps.std() / gaps.mean()), float(counts.var() / counts.mean())


def own_rate(times: Times, seconds: float | None) -> float:
    """Requests/s of a trace: over its window where it has one, else (n - 1) gaps over first to last."""
    if seconds is not None:
        return len(times) / seconds
    span = float(times[-1] - times[0])
    return (len(times) - 1) / span if span > 0 else float("nan")


def _ordered(raw: RawTrace, options: TraceOptions, notes: list[str]) -> RawTrace:
    back = np.flatnonzero(np.diff(raw.arrival_s) < 0)
    if not back.size:
        return raw
    if options.unsorted == "refuse":
        raise TraceError(
            f"{raw.path}:{raw.lines[back[0] + 1]}: the arrival lies before the one above it ({back.size} such rows); "
            "sort the trace, or give unsorted: sort"
        )
    notes.append(f"{back.size} rows went back in time: sorted, equal stamps in file order")
    return raw.take(np.argsort(raw.arrival_s, kind="stable"))


def _without_zeros(raw: RawTrace, options: TraceOptions, notes: list[str]) -> RawTrace:
    if raw.prompt_tokens is None or raw.output_tokens is None:
        return raw
    empty = raw.prompt_tokens == 0
    if empty.any() and options.zero_prompt == "refuse":
        first = raw.lines[np.flatnonzero(empty)[0]]
        raise TraceError(
            f"{raw.path}:{first}: 0 prompt tokens ({empty.sum()} such rows); give zero_prompt: drop to leave them out"
        )
    silent = raw.output_tokens == 0
    leave = empty | silent if options.zero_output == "drop" else empty
    if empty.any():
        notes.append(f"{empty.sum()} rows without prompt tokens dropped")
    if silent.any():
        notes.append(
            f"{silent.sum()} rows without output tokens {'dropped' if options.zero_output == 'drop' else 'kept'}"
        )
    return raw.take(~leave) if leave.any() else raw


def _with_equal_stamps(raw: RawTrace, options: TraceOptions, rng: np.random.Generator, notes: list[str]) -> RawTrace:
    stamps, at, sizes = np.unique(raw.arrival_s, return_inverse=True, return_counts=True)
    shared = int(sizes[sizes > 1].sum())
    if not shared:
        return raw
    if options.equal_stamps == "keep" or len(stamps) < 2:
        notes.append(f"{shared} of {len(at)} rows share their stamp: kept together")
        return raw
    resolution = float(np.diff(stamps).min())
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    if options.equal_stamps == "spread":
        part = (np.arange(len(at)) - first[at]) / sizes[at]
    else:
        part = np.where(sizes[at] > 1, rng.random(len(at)), 0.0)
        part = part[np.lexsort((part, at))]  # ascending inside each group, so that the file's order stays
    notes.append(
        f"{shared} of {len(at)} rows share their stamp; {options.equal_stamps} in the stamps' resolution, {resolution:g} s"
    )
    moved = raw.arrival_s + part * resolution
    return RawTrace(raw.path, moved, raw.prompt_tokens, raw.output_tokens, raw.hash_ids, raw.lines, raw.notes)


def _cut(raw: RawTrace, options: TraceOptions, notes: list[str]) -> tuple[RawTrace, float | None]:
    """The window and the row limit; the window's seconds where it holds the whole result."""
    total = len(raw.arrival_s)
    seconds = None
    if options.window is not None:
        start, end = options.window
        raw = raw.take((raw.arrival_s >= start) & (raw.arrival_s < end))
        raw = _moved(raw, raw.arrival_s - start)
        seconds = end - start
        notes.append(f"window [{start:g}, {end:g}) s: {len(raw.arrival_s)} of {total} rows")
    if options.limit is not None and len(raw.arrival_s) > options.limit:
        raw = raw.take(np.arange(options.limit))
        seconds = None
        notes.append(f"the first {options.limit} rows")
    return raw, seconds


def _at_rate(
    raw: RawTrace, options: TraceOptions, seconds: float | None, rng: np.random.Generator, notes: list[str]
) -> RawTrace:
    if options.rate is None:
        return raw
    own = own_rate(raw.arrival_s, seconds)
    if not own > 0:
        raise TraceError(f"{raw.path}: {len(raw.arrival_s)} rows over no time have no rate that could be changed")
    ratio = options.rate / own
    if options.rate_by == "time":
        notes.append(f"rate {own:.6g} to {options.rate:.6g} requests/s: time divided by {ratio:.6g}")
        return _moved(raw, raw.arrival_s / ratio)
    if ratio > 1:
        raise TraceError(
            f"{raw.path}: rate is {options.rate:.6g} requests/s, above the trace's own {own:.6g}: rate_by: thin only leaves "
            "requests out; rate_by: time can speed it up"
        )
    kept = raw.take(rng.random(len(raw.arrival_s)) < ratio)
    notes.append(
        f"rate {own:.6g} to {options.rate:.6g} requests/s: {len(kept.arrival_s)} of {len(raw.arrival_s)} rows, at random"
    )
    if not len(kept.arrival_s):
        raise TraceError(f"{raw.path}: no rows left after thinning to {options.rate:.6g} requests/s")
    return kept


def _scaled(raw: RawTrace, options: TraceOptions, notes: list[str]) -> RawTrace:
    if options.scale == 1.0 or raw.prompt_tokens is None or raw.output_tokens is None:
        return raw

    def scaled(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(lengths == 0, 0, np.maximum(np.rint(lengths * options.scale), 1)).astype(np.int64)

    prompt, output = scaled(raw.prompt_tokens), scaled(raw.output_tokens)
    notes.append(f"lengths times {options.scale:g}, rounded, at least 1")
    return RawTrace(raw.path, raw.arrival_s, prompt, output, raw.hash_ids, raw.lines, raw.notes)


def _moved(raw: RawTrace, arrival_s: Times) -> RawTrace:
    return RawTrace(raw.path, arrival_s, raw.prompt_tokens, raw.output_tokens, raw.hash_ids, raw.lines, raw.notes)
