"""Result files of other tools become runs that say what the files say, and nothing more."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.littles_law import littles_law
from analysis.runs import Run, open_run
from analysis.summary import latencies, summarize
from workload.importers.__main__ import import_results, main

VLLM: dict[str, Any] = {  # four requests: plain, in chunks of two tokens, failed, and one without a token
    "backend": "vllm",
    "model_id": "m",
    "request_rate": 2.0,
    "max_concurrency": 4,
    "start_times": [100.0, 100.5, 101.0, 101.5],
    "ttfts": [0.2, 0.3, 0.0, 0.0],
    "itls": [[0.1, 0.1], [0.2], [], []],
    "input_lens": [10, 20, 30, 40],
    "output_lens": [3, 4, 0, 0],
    "errors": ["", "", "connection reset", ""],
}


def guidellm_request(at: float, status_error: str | None = None, **timings: float) -> dict[str, Any]:
    return {
        "request_id": f"r{at}",
        "prompt_tokens": 12,
        "output_tokens": 5,
        "info": {"error": status_error, "timings": {"targeted_start": at, "request_start": at + 0.002, **timings}},
    }


GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "poisson", "rate": 4.0}},
            "requests": {
                "successful": [
                    guidellm_request(
                        1000.0, first_token_iteration=1000.1, last_token_iteration=1000.5, request_end=1000.6
                    ),
                    guidellm_request(
                        1001.0, first_token_iteration=1001.2, last_token_iteration=1001.6, request_end=1001.7
                    ),
                ],
                "errored": [guidellm_request(1000.5, "HTTP 500", request_end=1000.55)],
                "incomplete": [
                    guidellm_request(1002.0, first_token_iteration=1002.3),
                    {"request_id": "queued", "info": {"timings": {}}},
                ],
            },
        },
        {
            "requests": {  # as releases before 0.4 write it
                "successful": [
                    {
                        "request_id": "old",
                        "prompt_tokens": 3,
                        "output_tokens": 2,
                        "scheduler_info": {
                            "scheduler_timings": {"resolve_start": 5.0, "resolve_end": 6.1},
                            "request_timings": {
                                "request_start": 5.1,
                                "first_iteration": 5.5,
                                "last_iteration": 5.9,
                                "request_end": 6.0,
                            },
                        },
                    }
                ],
                "errored": [],
                "incomplete": None,
            }
        },
    ]
}
ZERO_NS = 1759813207_532900363


def aiperf_record(after_ns: int, took_ns: int, error: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    metrics = {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [5.0, 7.0], "unit": "ms"},
        "output_sequence_length": {"value": 3, "unit": "tokens"},
    }
    start = ZERO_NS + after_ns
    stamps = {"request_start_ns": start, "request_end_ns": start + took_ns, "benchmark_phase": "profiling"}
    return {
        "metadata": {"x_request_id": str(after_ns), "turn_index": 0, "was_cancelled": False, **stamps, **metadata},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}} if error else metrics,
        "error": error,
    }


AIPERF = [
    aiperf_record(0, 70_000_000),
    aiperf_record(1, 70_000_000, benchmark_phase="warmup"),
    aiperf_record(250_000_123, 90_000_000),
    aiperf_record(
        300_000_000, 10, {"code": 499, "type": "RequestCancellationError", "message": "cut"}, was_cancelled=True
    ),
    aiperf_record(400_000_000, 10, {"code": 500, "type": "InternalServerError", "message": "broke"}),
    aiperf_record(500_000_000, 10, {"code": 504, "type": "TimeoutError", "message": "late"}),
]


def imported(folder: Path, format: str, content: Any) -> list[Run]:
    file = folder / "result.json"
    lines = isinstance(content, list)
    file.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content))
    return [open_run(path) for path in import_results(format, file, folder / "out")]


def test_vllm_bench(tmp_path: Path) -> None:
    (run,) = imported(tmp_path, "vllm-bench", VLLM)
    rows = run.requests
    assert rows["intended_s"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert rows["first_token_s"].tolist()[:2] == pytest.approx([0.2, 0.8])
    assert rows["finished_s"].tolist()[:2] == pytest.approx([0.4, 1.0])
    assert rows["finish_reason"].tolist() == ["stop", "stop", "failed", "failed"]
    assert rows[["first_token_s", "last_token_s", "finished_s"]].iloc[2:].isna().all().all()  # a 0.0 is no TTFT
    assert rows["error"].tolist()[2:] == ["connection reset", "no token came"]
    assert np.isinf(latencies(run)["ttft"][2:]).all()
    assert run.tokens["request_id"].tolist() == ["0"]  # the second came two tokens at a time: no stamp of each
    assert run.tokens["token_s"][0].tolist() == pytest.approx([0.2, 0.3, 0.4])
    notes = " ".join(run.meta["notes"])
    assert "concurrency cap" in notes
    assert "1 of 4 answers" in notes
    assert "lag is unknown" in notes
    assert run.meta["imported"]["facts"]["request_rate"] == 2.0


def test_guidellm_has_intended_arrivals_and_what_was_in_flight_at_the_end(tmp_path: Path) -> None:
    run, old = imported(tmp_path, "guidellm", GUIDELLM)
    rows = run.requests
    assert run.meta["point"] == "0-poisson"
    assert rows["intended_s"].tolist() == [0.0, 0.5, 1.0, 2.0]
    assert rows["lag"].tolist() == pytest.approx([0.002] * 4)
    assert rows["finish_reason"].fillna("censored").tolist() == ["stop", "failed", "stop", "censored"]
    assert rows["finished_s"].tolist()[:3] == pytest.approx([0.6, 0.55, 1.7])
    assert math.isnan(rows["finished_s"].iloc[3])
    assert rows["output_tokens"].tolist()[0] == 5
    assert run.meta["lag"]["verdict"].startswith("fell behind")
    assert "1 requests were never begun" in " ".join(run.meta["notes"])
    assert not run.recorded("tokens")
    assert old.requests["first_token_s"].tolist() == pytest.approx([0.4])
    assert old.requests["lag"].isna().all()


def test_aiperf_keeps_nanoseconds_phases_and_outcomes(tmp_path: Path) -> None:
    (run,) = imported(tmp_path, "aiperf", AIPERF)
    rows = run.requests
    assert rows["intended_s"].tolist() == [0.0, 1e-9, 0.250000123, 0.3, 0.4, 0.5]
    assert rows["phase"].tolist() == ["measure", "warmup", "measure", "measure", "measure", "measure"]
    assert rows["finish_reason"].tolist() == ["stop", "stop", "stop", "aborted", "failed", "timeout"]
    assert rows["first_token_s"].iloc[2] == pytest.approx(0.300000123)
    assert rows["last_token_s"].iloc[2] == pytest.approx(0.312000123)
    assert rows["finished_s"].iloc[2] == pytest.approx(0.340000123)
    assert rows["prompt_tokens"].tolist() == [550] * 6
    assert rows["output_tokens"].iloc[3:].isna().all()
    assert len(run.measured) == 5


@pytest.mark.parametrize(("format", "content"), [("vllm-bench", VLLM), ("guidellm", GUIDELLM), ("aiperf", AIPERF)])
def test_what_no_tool_knows_is_missing_and_the_analysis_says_so(tmp_path: Path, format: str, content: Any) -> None:
    for run in imported(tmp_path, format, content):
        for column in (
            "received_s",
            "scheduled_s",
            "wait_total",
            "cap_wait",
            "cached_tokens",
            "preemptions",
            "max_tokens",
        ):
            assert run.requests[column].isna().all(), column
        assert not run.recorded("gauge")
        assert littles_law(run).verdict.startswith("not testable")
        assert summarize(run).status == "complete"


MISTAKES = [
    ("vllm-bench", {"ttfts": [1.0]}, ["start_times", "--save-detailed"]),
    ("vllm-bench", {**VLLM, "ttfts": [0.2]}, ["unequal length", "'ttfts': 1"]),
    ("vllm-bench", {**VLLM, "output_lens": [3, 4, 0, 1.5]}, ["output_lens[3]", "1.5", "whole number"]),
    ("vllm-bench", {**VLLM, "ttfts": [0.2, "x", 0, 0]}, ["ttfts[1]", "'x'", "number"]),
    ("guidellm", {"results": []}, ["benchmarks", "guidellm"]),
    ("guidellm", {"benchmarks": [{"requests": {}}]}, ["holds no measured request"]),
    ("aiperf", [AIPERF[0], {"metrics": {}}], ["result.json:2", "metadata"]),
    ("aiperf", [{"metadata": {}}], ["result.json:1", "request_start_ns"]),
]


@pytest.mark.parametrize(("format", "content", "words"), MISTAKES, ids=[" ".join(case[2]) for case in MISTAKES])
def test_a_file_of_another_kind_is_refused_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str, content: Any, words: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"result\.json") as caught:
        imported(tmp_path, format, content)
    assert all(word in str(caught.value) for word in words), caught.value
    assert main([format, str(tmp_path / "result.json"), "--out", str(tmp_path / "again")]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_command_writes_runs_and_overwrites_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text(json.dumps(VLLM))
    arguments = ["vllm-bench", str(tmp_path / "r.json"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip().endswith("0")
    assert main(arguments) == 2
    assert main(["aiperf", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "can't be read" in capsys.readouterr().err
