"""Tables written while a run goes on: what is read back, also after a kill at any byte."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.executors.base import ScheduledBatch
from engine.recorder import BATCH, GAUGE, STEPS, FileRecorder, StepRow
from engine.tables import TableWriter, read_stream, stream_to_parquet
from tests.engine.shadow import FakeClock, make_request, make_shadow_core, run_to_end

SCHEMA = pa.schema(
    [("n", pa.int64()), ("text", pa.string()), ("times", pa.list_(pa.float64()))], metadata={"schema_version": "7"}
)


def _row(n: int) -> tuple[int, str | None, list[float]]:
    return (n, None if n % 3 == 0 else f"row {n}", [n + 0.5] * (n % 4))


def _write(directory: Path, batches: list[range], close: bool = True) -> TableWriter:
    writer = TableWriter(directory, "table", SCHEMA)
    for batch in batches:
        writer.extend([_row(n) for n in batch])
        writer.flush()
    if close:
        writer.close()
    return writer


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_what_is_written_is_read_back_with_its_schema(tmp_path: Path) -> None:
    writer = _write(tmp_path, [range(5), range(5, 5), range(5, 9)])
    table = read_stream(writer.path)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert _rows(table) == [_row(n) for n in range(9)]
    assert writer.num_rows == 9


def test_no_rows_is_an_empty_table_not_an_error(tmp_path: Path) -> None:
    table = read_stream(_write(tmp_path, []).path)
    assert (table.num_rows, table.column_names) == (0, SCHEMA.names)


def test_a_process_killed_before_its_first_flush_leaves_an_empty_table(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, "table", SCHEMA)
    writer.append(_row(0))
    assert read_stream(writer.path).schema.equals(SCHEMA, check_metadata=True)
    assert read_stream(writer.path).num_rows == 0


def test_flushed_rows_are_on_disk_before_the_stream_is_closed(tmp_path: Path) -> None:
    writer = _write(tmp_path, [range(4)], close=False)
    writer.append(_row(4))  # still in memory
    assert _rows(read_stream(writer.path)) == [_row(n) for n in range(4)]
    writer.close()
    assert read_stream(writer.path).num_rows == 5


def test_parquet_replaces_the_stream_and_says_the_same(tmp_path: Path) -> None:
    writer = _write(tmp_path, [range(6)])
    target = stream_to_parquet(writer.path)
    assert (target.name, writer.path.exists()) == ("table.parquet", False)
    table = pq.read_table(target)
    assert table.schema.metadata[b"schema_version"] == b"7"
    assert _rows(table) == [_row(n) for n in range(6)]


def test_cut_at_every_byte_only_whole_batches_come_back(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, "table", SCHEMA)
    ends = [(SCHEMA.serialize().size, 0)]  # bytes of the file when so many rows are on disk
    for batch in (range(3), range(3, 4), range(4, 9)):
        writer.extend([_row(n) for n in batch])
        writer.flush()
        ends.append((writer.path.stat().st_size, batch.stop))
    writer.close()
    data = writer.path.read_bytes()
    complete = read_stream(writer.path)
    assert _rows(complete) == [_row(n) for n in range(9)]
    cut = tmp_path / "cut.arrows"
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        if size < ends[0][0]:
            with pytest.raises(ValueError, match=r"cut\.arrows: no Arrow stream, or cut off before its schema"):
                read_stream(cut)
        else:
            whole = max(rows for end, rows in ends if end <= size)
            assert read_stream(cut).equals(complete.slice(0, whole)), f"cut at byte {size}"


def test_rows_appended_by_other_threads_during_flushes_are_all_there_in_each_thread_s_order(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, "table", pa.schema([("thread", pa.int64()), ("n", pa.int64())]))
    count = 5000

    def append(thread: int) -> None:
        for n in range(count):
            writer.append((thread, n))

    threads = [threading.Thread(target=append, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        writer.flush()
    writer.close()
    rows = _rows(read_stream(writer.path))
    assert len(rows) == writer.num_rows == 4 * count
    for index in range(4):
        assert [n for owner, n in rows if owner == index] == list(range(count))


@pytest.mark.parametrize("row", [(1,), (1, 2, 3)])
def test_a_row_of_the_wrong_length_is_an_error_and_not_a_shifted_column(tmp_path: Path, row: tuple[int, ...]) -> None:
    writer = TableWriter(tmp_path, "table", pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    writer.append(row)
    with pytest.raises(ValueError, match="zip"):
        writer.flush()


def test_step_row_and_schema_have_the_same_columns() -> None:
    assert list(StepRow._fields) == STEPS.names


def test_the_file_recorder_writes_what_the_core_did_from_the_run_s_origin(tmp_path: Path) -> None:
    clock = FakeClock(100.0)
    core = make_shadow_core(20, 2, clock=clock, max_num_seqs=2)
    recorder = FileRecorder(tmp_path, origin_s=90.0, clock=clock)
    core.record_to(recorder)
    core.add(make_request("a", 5, 3))
    core.add(make_request("b", 3, 3))
    steps = run_to_end(core, 20)
    core.record_to(None)
    counts = recorder.close()
    tables = {name: read_stream(tmp_path / f"{name}.arrows") for name in ("steps", "batch", "gauge")}
    assert [tables[name].schema for name in ("steps", "batch", "gauge")] == [STEPS, BATCH, GAUGE]
    assert counts == {"steps": steps, "gauge": tables["gauge"].num_rows, "recording_s": 0.0}
    assert tables["steps"]["start_s"].to_pylist() == [10.0 + step for step in range(steps)]
    assert tables["steps"]["end_s"].to_pylist() == [11.0 + step for step in range(steps)]
    assert _rows(tables["batch"])[:2] == [(0, "a", 5), (0, "b", 3)]
    assert _rows(tables["gauge"])[0] == (10.0, 0, 0, 0)
    assert _rows(tables["gauge"])[-1][1:] == (0, 0, 0)


def test_a_batch_without_rows_writes_no_batch_rows(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path, 0.0)
    recorder.record_step(StepRow(*[0] * len(STEPS.names)), ScheduledBatch())
    assert recorder.close()["steps"] == 1
    assert read_stream(tmp_path / "batch.arrows").num_rows == 0
