"""HDR histograms of latencies: 1 µs to 1 h in whole µs with 3 significant digits, mergeable, in files other tools read.

Bucket layout and coding are the ``hdrhistogram`` package's. Around it stands what it leaves out or gets wrong: values
out of range are counted instead of dropped, maximum, minimum and sum stay exact, whole arrays are recorded at once, ranks
are those of the inverted CDF, and both writers are mended (see ``write_hgrm`` and ``write_hlog``).
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Literal

import numpy as np
from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from numpy.typing import ArrayLike, NDArray

from analysis.tails import rank

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3
RANK_RULE = "inverted CDF: the smallest value x with F(x) >= q"
_UNITS_PER_US: dict[str, float] = {"us": 1.0, "ms": 1e3, "s": 1e6}  # µs in one printed unit

Unit = Literal["us", "ms", "s"]
Counts = NDArray[np.int64]


class Histogram:
    """Latencies in, latencies out, in seconds; whole µs inside.

    ``below`` and ``above`` count what fell outside 1 µs to 1 h (inf, a request that never ended, is above); they take
    part in every rank. ``max`` and ``min`` are the exact extremes of everything recorded, ``mean`` is exact. ``start_s`` and
    ``end_s`` are wall-clock times for the log (seconds since the epoch).
    """

    def __init__(self, start_s: float = 0.0, end_s: float = 0.0, tag: str | None = None):
        if tag is not None and re.search(r"[,\s]", tag):
            raise ValueError(f"a tag must hold neither comma nor space, found {tag!r}")
        self.start_s, self.end_s, self.tag = start_s, end_s, tag
        self.below = 0
        self.above = 0
        self.max = -math.inf
        self.min = math.inf
        self._sum = 0.0
        self._layout = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        self._counts: Counts = np.zeros(self._layout.counts_len, dtype=np.int64)

    def record(self, s: ArrayLike) -> None:
        """Count one latency, or an array of them, in seconds. Raises ValueError on nan: it says nothing happened."""
        values = np.atleast_1d(np.asarray(s, dtype=np.float64)).ravel()
        if np.isnan(values).any():
            raise ValueError(f"{np.isnan(values).sum()} of {values.size} latencies are nan; leave out, or record inf")
        if values.size == 0:
            return
        self.max, self.min = max(self.max, float(values.max())), min(self.min, float(values.min()))
        self._sum += float(values.sum())
        micros = np.rint(values * 1e6)
        low, high = micros < LOWEST_US, micros > HIGHEST_US
        self.below += int(low.sum())
        self.above += int(high.sum())
        self._add(micros[~(low | high)].astype(np.int64))

    def merge(self, other: Histogram) -> Histogram:
        """Add another histogram's counts to this one, which is returned. Only replications of one point belong together."""
        self._counts += other._counts
        self.below += other.below
        self.above += other.above
        self.max, self.min = max(self.max, other.max), min(self.min, other.min)
        self._sum += other._sum
        if other.start_s or other.end_s:
            known = bool(self.start_s or self.end_s)
            self.start_s = min(self.start_s, other.start_s) if known else other.start_s
            self.end_s = max(self.end_s, other.end_s)
        return self

    @property
    def count(self) -> int:
        """All that was recorded, out of range included."""
        return int(self._counts.sum()) + self.below + self.above

    @property
    def mean(self) -> float:
        """Exact mean in seconds (inf with a censored value, nan when empty)."""
        return self._sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds, rank by the inverted CDF, value the upper edge of its bucket (at most 0.1 % high).

        Never above the exact maximum. Ranks below the range answer 1 µs, ranks above it the maximum: upper bounds both.
        """
        if not self.count:
            raise ValueError("an empty histogram has no quantiles")
        k = rank(q, self.count)
        if k <= self.below:
            return min(LOWEST_US * 1e-6, self.max)
        if k > min(self.count - self.above, self.count - 1):
            return self.max
        index = int(np.searchsorted(np.cumsum(self._counts), k - self.below))
        return min(float(self._highest(np.array([index]))[0]) * 1e-6, self.max)

    def write_hgrm(self, path: str | Path, unit: Unit = "ms", ticks_per_half_distance: int = 5) -> None:
        """The percentile table of HdrHistogram's ``outputPercentileDistribution``, values in ``unit`` (3 decimals).

        The package's writer differs from the Java tool in the percentile steps (not held within a half distance), in
        the total count (three decimals, other name), in rounding (half to even) and in the standard deviation (left in
        µs). Those are as in Java here. Two lines are better than Java's: ``Max`` is the exact maximum, not its bucket's
        upper edge, and where something lies out of range a last line counts it (the table holds the rest).
        """
        scale = _UNITS_PER_US[unit]
        lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
        for value, level, total in self._percentiles(ticks_per_half_distance):
            row = f"{_fixed(value / scale, 3):>12} {_fixed(level / 100, 12)} {total:>10d}"
            lines.append(row if level == 100 else f"{row} {_fixed(1 / (1 - level / 100), 2):>14}")
        mean, deviation = (_fixed(value / scale, 3) for value in self._bucket_moments())
        largest = _fixed(self.max * 1e6 / scale, 3) if self.count else _fixed(0.0, 3)
        lines.append(f"#[Mean    = {mean:>12}, StdDeviation   = {deviation:>12}]")
        lines.append(f"#[Max     = {largest:>12}, Total count    = {int(self._counts.sum()):>12d}]")
        lines.append(
            f"#[Buckets = {self._layout.bucket_count:>12d}, SubBuckets     = {self._layout.sub_bucket_count:>12d}]"
        )
        if self.below or self.above:
            lines.append(f"#[Below 1 us = {self.below:>9d}, Above 1 h      = {self.above:>12d}]")
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def write_hlog(self, path: str | Path) -> None:
        """This histogram as a log of one interval (see the function ``write_hlog``)."""
        write_hlog(path, [self])

    def summary(self) -> str:
        """One line for a report: count, maximum, what lies outside, and the rank rule."""
        outside = f", {self.below} below 1 µs, {self.above} above 1 h" if self.below or self.above else ""
        largest = f", max {1e3 * self.max:.3f} ms" if self.count else ""
        return f"{self.count} latencies{largest}{outside}; quantiles by {RANK_RULE}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return self._state() == other._state() and bool(np.array_equal(self._counts, other._counts))

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Histogram({self.summary()})"

    def _state(self) -> tuple[float, ...]:
        return self.below, self.above, self.max, self.min, self._sum

    def _add(self, micros: Counts, times: Counts | None = None) -> None:
        exponent = np.frexp((micros | self._layout.sub_bucket_mask).astype(np.float64))[1].astype(np.int64)
        bucket = exponent - (self._layout.sub_bucket_half_count_magnitude + 1)
        index = (bucket << self._layout.sub_bucket_half_count_magnitude) + (micros >> bucket)
        if times is None:
            self._counts += np.bincount(index, minlength=self._counts.size)
        else:
            np.add.at(self._counts, index, times)

    def _lowest(self, index: Counts) -> Counts:
        magnitude = self._layout.sub_bucket_half_count_magnitude
        bucket = np.maximum((index >> magnitude) - 1, 0)
        return (index - (bucket << magnitude)) << bucket

    def _highest(self, index: Counts) -> Counts:
        return self._lowest(index) + self._width(index) - 1

    def _width(self, index: Counts) -> Counts:
        magnitude = self._layout.sub_bucket_half_count_magnitude
        return np.int64(1) << np.maximum((index >> magnitude) - 1, 0)

    def _bucket_moments(self) -> tuple[float, float]:
        """Mean and standard deviation in µs of what lies in range, each value at its bucket's middle, as in Java."""
        index = np.flatnonzero(self._counts)
        if index.size == 0:
            return 0.0, 0.0
        middle = (self._lowest(index) + (self._width(index) >> 1)).astype(float)
        weight = self._counts[index] / self._counts.sum()
        mean = float(np.sum(middle * weight))
        return mean, math.sqrt(float(np.sum((middle - mean) ** 2 * weight)))

    def _percentiles(self, ticks: int) -> Iterator[tuple[int, float, int]]:
        """(value in µs, percentile, cumulative count): ``ticks`` steps in each halving of the way to 100 %."""
        index = np.flatnonzero(self._counts)
        if index.size == 0:
            return
        values = self._highest(index).tolist()
        cumulative = np.cumsum(self._counts[index]).tolist()
        total, level, i = cumulative[-1], 0.0, 0
        while True:
            while 100.0 * cumulative[i] / total < level:
                i += 1
            yield values[i], level, cumulative[i]
            if cumulative[i] == total:
                yield values[i], 100.0, total
                return
            half = int(math.log(100.0 / (100.0 - level)) / math.log(2)) + 1
            level += 100.0 / (ticks * 2**half)

    def _encoded(self) -> str:
        """The counts as the package's base64 payload (V2)."""
        histogram = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        used = np.flatnonzero(self._counts)
        for i in used.tolist():
            histogram.counts[i] = int(self._counts[i])
        histogram.total_count = int(self._counts.sum())
        if used.size:
            histogram.min_value = int(self._lowest(used[:1])[0])
            histogram.max_value = int(self._highest(used[-1:])[0])
        return str(histogram.encode().decode())


def write_hlog(path: str | Path, intervals: Iterable[Histogram]) -> None:
    """Histograms as an HdrHistogram log (format 1.2), one interval a line, ``Interval_Max`` in ms.

    The package's writer floors the maximum and fails on a start time. What the format can't hold (exact extremes and
    sum, what lies out of range) stands in a comment before each interval; other readers skip it, ``read_hlog`` does not.
    """
    histograms = list(intervals)
    start = min((h.start_s for h in histograms), default=0.0)
    when = datetime.fromtimestamp(start, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    lines = [
        f"#[Latencies in microseconds, Interval_Max in milliseconds; ranks by {RANK_RULE}]",
        "#[Histogram log format version 1.2]",
        f"#[StartTime: {start:.3f} (seconds since epoch), {when}]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]
    for h in histograms:
        below, above, largest, smallest, total = h._state()
        lines.append(
            f"#[Exact: below={below} above={above} max={largest!r} min={smallest!r} sum={total!r} "
            f"start={h.start_s!r} end={h.end_s!r}]"
        )
        # The format's readers know no infinity: an interval with requests that never ended shows the range's end.
        shown = min(max(largest, 0.0) * 1e3, HIGHEST_US / 1e3)
        tag = "" if h.tag is None else f"Tag={h.tag},"
        lines.append(f"{tag}{h.start_s:.3f},{h.end_s - h.start_s:.3f},{shown:.3f},{h._encoded()}")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_hlog(path: str | Path) -> Histogram:
    """The whole log as one histogram: the sum of its intervals."""
    total = Histogram()
    for interval in read_intervals(path):
        total.merge(interval)
    return total


def read_intervals(path: str | Path) -> list[Histogram]:
    """Every interval of a log, ours or another tool's (its values are taken as µs).

    Without our comment the exact values are gone: extremes are then those of the buckets, the mean that of their middles.
    Raises ValueError with the line number where a line can't be read.
    """
    found: list[Histogram] = []
    exact: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("#[Exact: "):
            exact = dict(re.findall(r"(\w+)=([^\s\]]+)", line))
        elif line and line[0] not in '#"':
            try:
                found.append(_parse_interval(line, exact))
            except (ValueError, TypeError, KeyError, zlib.error, HdrCookieException, HdrLengthException) as error:
                raise ValueError(f"{path}, line {number}: not an interval of a histogram log: {error!r}") from error
            exact = {}
    return found


def _parse_interval(line: str, exact: dict[str, str]) -> Histogram:
    tag = None
    if line.startswith("Tag="):
        label, line = line.split(",", 1)
        tag = label[4:]
    start, length, _, payload = line.split(",", 3)
    decoded = HdrHistogram.decode(payload.encode())
    result = Histogram(float(start), float(start) + float(length), tag)
    used = [(decoded.get_value_from_index(i), n) for i, n in enumerate(decoded.counts) if n]
    values = np.array([v for v, _ in used], dtype=np.int64)
    times = np.array([n for _, n in used], dtype=np.int64)
    inside = (values >= LOWEST_US) & (values <= HIGHEST_US)
    result._add(values[inside], times[inside])
    if exact:
        result.below, result.above = int(exact["below"]), int(exact["above"])
        result.max, result.min, result._sum = (float(exact[name]) for name in ("max", "min", "sum"))
        result.start_s, result.end_s = float(exact["start"]), float(exact["end"])
    elif used:
        result.below = int(times[values < LOWEST_US].sum())
        result.above = int(times[values > HIGHEST_US].sum())
        result.max = decoded.get_highest_equivalent_value(int(values[-1])) * 1e-6
        result.min = float(values[0]) * 1e-6
        result._sum = decoded.get_mean_value() * 1e-6 * float(times.sum())
    return result


def _fixed(value: float, decimals: int) -> str:
    """``value`` with so many decimals, ties away from zero as Java's formatter rounds (C's goes to the even digit)."""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    exact = Decimal(repr(float(value)))
    return f"{exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP):f}"
