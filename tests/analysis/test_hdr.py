"""The histogram against its package, exact quantiles, the published percentile table, and itself read back."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.hdr import RANK_RULE, Histogram, read_hlog, read_intervals, write_hlog
from analysis.tails import quantile


def filled(values: object) -> Histogram:
    histogram = Histogram()
    histogram.record(values)  # type: ignore[arg-type]
    return histogram


def test_recording_an_array_puts_every_value_where_the_package_puts_it() -> None:
    rng = np.random.default_rng(0)
    micros = np.unique(np.concatenate([np.arange(1, 5000), np.exp(rng.uniform(0, np.log(3.6e9), 3000)).astype(int)]))
    micros = np.append(micros, 3_600_000_000)
    ours = filled(micros * 1e-6)
    theirs = HdrHistogram(1, 3_600_000_000, 3)
    for value in micros.tolist():
        theirs.record_value(value)
    assert ours._counts.tolist() == list(theirs.counts)
    used = np.flatnonzero(ours._counts)
    assert ours._lowest(used).tolist() == [theirs.get_value_from_index(i) for i in used.tolist()]
    highest = [theirs.get_highest_equivalent_value(theirs.get_value_from_index(i)) for i in used.tolist()]
    assert ours._highest(used).tolist() == highest


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 3600), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_are_the_exact_ones_within_three_digits(x: list[float], q: float) -> None:
    histogram = filled(x)
    assert histogram.quantile(q) == pytest.approx(quantile(x, q), rel=1e-3, abs=1e-6)
    assert histogram.quantile(1.0) == histogram.max == max(x)
    assert histogram.quantile(q) <= histogram.max
    assert histogram.mean == pytest.approx(np.mean(x))
    levels = [histogram.quantile(p) for p in np.linspace(0, 1, 21)]
    assert levels == sorted(levels)


def test_what_falls_outside_is_counted_and_keeps_its_rank() -> None:
    histogram = filled([0.0, -1e-3, 2e-7, 1e-6, 0.5, 3600.0, 3600.1, 7200.25, np.inf])
    assert (histogram.below, histogram.above, histogram.count) == (3, 3, 9)
    assert histogram.max == np.inf
    assert histogram.min == -1e-3
    assert histogram.quantile(3 / 9) == 1e-6  # an upper bound of what lies below
    assert histogram.quantile(5 / 9) == pytest.approx(0.5, rel=1e-3)
    assert histogram.quantile(0.99) == np.inf
    assert filled([0.1, 7200.25]).quantile(1) == 7200.25
    assert filled([0.001953125]).quantile(1) == 0.001953125  # rounds down to whole µs, but the maximum is exact
    with pytest.raises(ValueError, match="1 of 2 latencies are nan"):
        histogram.record([1.0, np.nan])
    with pytest.raises(ValueError, match="empty"):
        Histogram().quantile(0.5)


def test_merged_workers_give_the_percentile_of_all_requests_not_the_average() -> None:
    fast, slow = filled(np.full(1000, 0.010)), filled(np.full(1000, 1.0))
    both = fast.merge(slow)
    assert both is fast
    assert both.quantile(0.5) == pytest.approx(0.010, rel=1e-3)
    assert both.quantile(0.99) == 1.0
    assert both.count == 2000


def table(path: Path) -> tuple[list[list[str]], list[str]]:
    lines = path.read_text().splitlines()
    return [line.split() for line in lines[2:] if not line.startswith("#")], [x for x in lines if x.startswith("#")]


def test_hgrm_has_the_java_tools_steps_ties_and_footer(tmp_path: Path) -> None:
    # A table that HdrHistogram's own tools published (test data of HdrHistogram.NET): its last rows, and counts
    counts = {1: 7604459, 383: 2395524, 453: 2, 511: 2, 537: 3, 672: 1, 777: 1, 18143: 1, 208127: 1}
    counts |= {224639: 1, 229759: 1, 230271: 1, 258943: 1, 275711: 1, 282111: 1}
    histogram = Histogram()
    for value, times in counts.items():
        histogram._add(np.array([value]), np.array([times]))
    histogram.max = 282111e-6
    histogram.write_hgrm(tmp_path / "a.hgrm", unit="us")
    text = (tmp_path / "a.hgrm").read_text()
    header = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n"
    assert text.startswith(f"{header}       1.000 0.000000000000    7604459           1.00\n")
    for row in (
        "       1.000 0.750000000000    7604459           4.00",
        "     383.000 0.775000000000    9999983           4.44",
        "     383.000 0.999829101563    9999983        5851.43",  # a tie, rounded up
        "     383.000 0.999853515625    9999983        6826.67",
        "     672.000 0.999999046326    9999991     1048576.00",
        "  275711.000 0.999999892712    9999999     9320675.55",  # the rounding error of 1 - p, as published
        "  282111.000 0.999999904633   10000000    10485760.00",
        "  282111.000 1.000000000000   10000000",
        "#[Max     =   282111.000, Total count    =     10000000]",
    ):
        assert f"{row}\n" in text
    rows, _ = table(tmp_path / "a.hgrm")
    exact = [1 - Fraction(1, 2**j) + Fraction(i, 5 * 2 ** (j + 1)) for j in range(24) for i in range(5)]
    assert [float(row[1]) for row in rows[:-1]] == pytest.approx([float(p) for p in exact[: len(rows) - 1]], abs=6e-13)


def test_hgrm_is_byte_for_byte_the_java_tools_but_for_the_mended_maximum(tmp_path: Path) -> None:
    """The digest is of what HdrHistogram 2.1.11 for Java printed of the same 20,000 values (in ms, 5 steps a half), ``Max``
    left out: there Java has the upper edge of the bucket, 3000.319."""
    i = np.arange(20_000)
    filled((1 + i * i * 7919 % 3_000_017) * 1e-6).write_hgrm(tmp_path / "a.hgrm")
    lines = (tmp_path / "a.hgrm").read_text().splitlines(keepends=True)
    (largest,) = [line for line in lines if line.startswith("#[Max")]
    assert largest == "#[Max     =     2999.988, Total count    =        20000]\n"
    printed = "".join(line for line in lines if line != largest)
    assert hashlib.sha256(printed.encode()).hexdigest() == (
        "f93717b4cd9c29662a64ede17c5725826bd7e7b01516c61c4cef57092e58098f"
    )


def test_hgrm_mends_deviation_and_maximum(tmp_path: Path) -> None:
    x = np.random.default_rng(1).lognormal(-2, 1, 20_000)
    x[7] = 123.4567891
    filled(x).write_hgrm(tmp_path / "x.hgrm")  # ms
    rows, footer = table(tmp_path / "x.hgrm")
    numbers = [float(v.strip(" ]")) for line in footer for v in line.replace(",", "=").split("=")[1::2]]
    mean, deviation, largest, total, buckets, sub_buckets = numbers
    assert mean == pytest.approx(1e3 * x.mean(), rel=1e-3)
    assert deviation == pytest.approx(1e3 * x.std(), rel=2e-3)
    assert largest == 123456.789
    assert (total, buckets, sub_buckets) == (20_000, 22, 2048)
    for value, level, cumulative, *_ in rows:
        assert float(value) == pytest.approx(1e3 * quantile(x, float(level)), rel=1.1e-3)
        assert int(cumulative) == np.sum(np.rint(x * 1e6) <= round(float(value) * 1e3))
    Histogram().write_hgrm(tmp_path / "empty.hgrm")
    assert "Total count    =            0]" in (tmp_path / "empty.hgrm").read_text()
    filled([0.1, 9999.0]).write_hgrm(tmp_path / "out.hgrm")
    assert "#[Below 1 us =         0, Above 1 h      =            1]" in (tmp_path / "out.hgrm").read_text()


def test_hlog_round_trips_everything(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    first = Histogram(1_700_000_000.25, 1_700_000_010.5, tag="ttft")
    first.record(rng.lognormal(-3, 1, 5000))
    first.record([1e-9, 5000.0])
    second = Histogram(1_700_000_010.5, 1_700_000_020.0)
    second.record([0.0012345678, 0.0019999])
    write_hlog(tmp_path / "two.hlog", [first, second])
    back = read_intervals(tmp_path / "two.hlog")
    assert back == [first, second]
    assert [(h.start_s, h.end_s, h.tag) for h in back] == [(h.start_s, h.end_s, h.tag) for h in (first, second)]
    assert f"ranks by {RANK_RULE}" in (tmp_path / "two.hlog").read_text()
    assert RANK_RULE in first.summary()
    whole = read_hlog(tmp_path / "two.hlog")
    assert whole.count == 5004
    assert whole == Histogram().merge(first).merge(second)
    for histogram in (second, Histogram(), filled([np.inf])):
        histogram.write_hlog(tmp_path / "one.hlog")
        assert read_hlog(tmp_path / "one.hlog") == histogram
    second.write_hlog(tmp_path / "one.hlog")
    assert ",9.500,2.000," in (tmp_path / "one.hlog").read_text()  # 1.9999 ms: not floored
    assert (
        "StartTime: 1700000010.500 (seconds since epoch), Tue Nov 14 22:13:30 UTC 2023"
        in (tmp_path / "one.hlog").read_text()
    )


def test_the_packages_reader_reads_our_log_and_we_read_foreign_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.hlog"
    x = np.random.default_rng(3).lognormal(-3, 1, 1000)
    filled(x).write_hlog(path)
    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000, 3))
    theirs = reader.get_next_interval_histogram()
    reader.close()
    assert theirs.get_total_count() == 1000
    assert theirs.get_value_at_percentile(50) * 1e-6 == pytest.approx(quantile(x, 0.5), rel=2e-3)
    foreign = HdrHistogram(1, 10_000_000_000, 2)
    for value in (0, 150, 250_000, 9_000_000_000):
        foreign.record_value(value)
    path.write_text(f'#[a comment]\n"StartTimestamp",...\nTag=A,1.5,2.0,3.0,{foreign.encode().decode()}\n')
    (ours,) = read_intervals(path)
    assert (ours.count, ours.below, ours.above, ours.tag, ours.start_s, ours.end_s) == (4, 1, 1, "A", 1.5, 3.5)
    assert ours.quantile(0.75) == pytest.approx(0.25, rel=0.01)
    path.write_text("#[x]\n1.0,2.0,3.0,HISTnonsense\n")
    with pytest.raises(ValueError, match="line 2"):
        read_hlog(path)
    with pytest.raises(ValueError, match="tag"):
        Histogram(tag="a,b")
