"""Run directories: complete, cut off in the middle of a message, of an unknown version, and runs in memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.runs import Run, find_runs, open_run
from engine.recorder import GAUGE, STEPS
from workload.records import REQUESTS, TOKENS


def _requests(n: int) -> pa.Table:
    columns = {field.name: pa.nulls(n, field.type) for field in REQUESTS}
    columns["request_id"] = pa.array([f"r{i}" for i in range(n)])
    columns["phase"] = pa.array(["warmup"] * (n // 2) + ["measure"] * (n - n // 2))
    columns["intended_s"] = pa.array(np.arange(n, dtype=float))
    columns["finished_s"] = pa.array(np.where(np.arange(n) % 5 == 4, np.nan, np.arange(n) + 0.5), from_pandas=False)
    return pa.table(columns, schema=REQUESTS)


def _gauge(n: int) -> pa.Table:
    count = np.arange(n, dtype=np.int32)
    return pa.table({"t_s": np.arange(n) * 0.1, "inbox": count, "waiting": count, "running": count}, schema=GAUGE)


def _directory(path: Path, **meta: object) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema_version": 1, "status": "complete", **meta}))
    return path


def test_a_complete_run_reads_back_what_was_written(tmp_path: Path) -> None:
    path = _directory(tmp_path / "s" / "e" / "p" / "0", window={"measure_start_s": 3.0, "measure_end_s": 9.0})
    pq.write_table(_requests(10), path / "requests.parquet")
    pq.write_table(_gauge(7), path / "gauge.parquet")
    pq.write_table(pa.table({"request_id": ["r0"], "token_s": [[0.1, 0.2]]}, schema=TOKENS), path / "tokens.parquet")
    run = open_run(path)
    assert not run.partial
    assert run.status == "complete"
    assert run.path == path
    assert list(run.requests.columns) == REQUESTS.names
    assert run.requests["finished_s"].isna().sum() == 2
    assert run.gauge["running"].tolist() == list(range(7))
    assert run.tokens["token_s"][0].tolist() == [0.1, 0.2]
    assert run.window == (3.0, 9.0)
    assert run.measured["request_id"].tolist() == [f"r{i}" for i in range(5, 10)]
    assert run.recorded("gauge")
    assert not run.recorded("steps")
    assert list(run.steps.columns) == STEPS.names
    assert run.steps.empty
    assert find_runs(tmp_path) == [path]


def _stream(table: pa.Table, rows: int) -> tuple[bytes, list[int]]:
    """The table as a stream of batches of ``rows``, and the offset at which each message is complete."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_stream(sink, table.schema) as writer:
        ends.append(sink.tell())
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
            ends.append(sink.tell())
    return sink.getvalue().to_pybytes(), ends


def test_a_stream_cut_at_any_byte_gives_all_its_complete_batches(tmp_path: Path) -> None:
    path = _directory(tmp_path / "run")
    content, ends = _stream(_gauge(40), rows=10)
    for cut in range(0, len(content) + 1, 7):
        (path / "gauge.arrows").write_bytes(content[:cut])
        complete = max(0, sum(end <= cut for end in ends) - 1)
        run = open_run(path)
        assert run.partial
        assert run.status == "interrupted"
        assert len(run.gauge) == 10 * complete, cut
        assert list(run.gauge.columns) == GAUGE.names
        if complete:
            assert run.gauge["inbox"].tolist() == list(range(10 * complete))


def test_the_stream_is_preferred_to_a_parquet_file_that_was_being_made_from_it(tmp_path: Path) -> None:
    path = _directory(tmp_path / "run")
    (path / "gauge.arrows").write_bytes(_stream(_gauge(5), rows=5)[0])
    (path / "gauge.parquet").write_bytes(b"PAR1 and no more")
    assert len(open_run(path).gauge) == 5


def test_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    path = _directory(tmp_path / "run")
    pq.write_table(_gauge(3).replace_schema_metadata({"schema_version": "99"}), path / "gauge.parquet")
    with pytest.raises(ValueError, match=r"gauge.*schema version 99.*knows 1"):
        _ = open_run(path).gauge
    other = _directory(tmp_path / "other", schema_version=7)
    with pytest.raises(ValueError, match="schema version 7"):
        open_run(other)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run\.json"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_run(tmp_path)
    with pytest.raises(ValueError, match="not a directory"):
        find_runs(tmp_path / "nowhere")


def test_a_run_in_memory_fills_what_was_not_recorded_with_nulls() -> None:
    requests = pd.DataFrame({"request_id": ["a", "b"], "intended_s": [1.0, 4.0], "extra": [1, 2]})
    run = Run.from_tables(requests)
    assert run.path is None
    assert not run.partial
    assert not run.recorded("gauge")
    assert list(run.requests.columns) == [*REQUESTS.names, "extra"]
    assert run.requests["finished_s"].isna().all()
    assert run.requests["finished_s"].dtype == np.float64
    assert run.window == (1.0, 4.0)
    assert len(run.measured) == 2
    assert run.gauge.empty
    assert list(run.gauge.columns) == GAUGE.names
    with pytest.raises(ValueError, match="lacks the column"):
        Run.from_tables(pd.DataFrame({"request_id": ["a"]}))
