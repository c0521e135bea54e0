"""Traces are read as they are, changed only as asked, and what can't be right is named with its line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from workload.arrivals import arrival_times
from workload.experiment import load_study
from workload.plan import plan_requests, run_lengths
from workload.traces import TraceError, read_trace
from workload.traces.servegen import gamma_window, weibull_window
from workload.traces.shape import burstiness

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"the public trace {name} is not beside this checkout (../shared/traces)")
    return path


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
BURST6 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST8 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_azure_stamps_100_ns_apart_stay_apart(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:46.6805901,396,109", "2023-11-16 18:15:47,10,2"]
    table = read_trace(write(tmp_path, "azure.csv", AZURE + "\r\n".join(rows)))
    assert table["arrival_s"].tolist() == [0.0, 1e-7, 0.3194100]
    assert table["prompt_tokens"].tolist() == [374, 396, 10]
    assert table["output_tokens"].tolist() == [44, 109, 2]


def test_azure_2024_stamps_with_a_zone(tmp_path: Path) -> None:
    rows = ["2024-05-10 23:59:59.9999995+00:00,3,4", "2024-05-11 00:00:00+00:00,5,6"]
    table = read_trace(write(tmp_path, "azure24.csv", AZURE + "\n".join(rows) + "\n"))
    assert table["arrival_s"].tolist() == [0.0, 5e-7]


def test_the_shared_azure_trace_read_by_hand() -> None:
    path = shared("AzureLLMInferenceTrace_conv.csv")
    table = read_trace(path)
    assert len(table) == 19_366
    lines = path.read_text().splitlines()[1:]

    def ticks(line: str) -> int:  # 100 ns since midnight, by hand
        clock = line.split(",")[0].split(" ")[1]
        hours, minutes, seconds = clock.split(":")
        return (int(hours) * 3600 + int(minutes) * 60) * 10**7 + int(seconds.replace(".", ""))

    expected = np.array([ticks(line) for line in lines])
    assert np.array_equal(np.rint(table["arrival_s"].to_numpy() * 1e7).astype(np.int64), expected - expected[0])
    assert table["arrival_s"].nunique() == len(set(expected.tolist())) == 19_366
    assert table["prompt_tokens"].sum() == sum(int(line.split(",")[1]) for line in lines)


def test_the_shared_mooncake_trace_and_its_hash_ids() -> None:
    path = shared("mooncake_fast25_conversation_trace.jsonl")
    table = read_trace(path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert table["arrival_s"].tolist() == pytest.approx([row["timestamp"] / 1000 for row in rows])
    assert table["output_tokens"].tolist() == [row["output_length"] for row in rows]
    assert [list(ids) for ids in table["hash_ids"][:100]] == [row["hash_ids"] for row in rows[:100]]
    assert any("12031 of 12031 rows share their stamp" in note for note in table.attrs["notes"])


def test_prefix_blocks_of_one_length_of_none_and_missing_ones(tmp_path: Path) -> None:
    head = '"timestamp": 0, "input_length": 600, "output_length": 5'
    for ids in ("[[1, 2], [1, 3]]", "[[], [4]]", "[[1, 2], null]"):
        rows = [f'{{{head}, "hash_ids": {json.dumps(one)}}}' for one in json.loads(ids)]
        table = read_trace(write(tmp_path, "m.jsonl", "\n".join(rows)))
        assert [None if one is None else list(one) for one in table["hash_ids"]] == json.loads(ids)


def test_the_shared_servegen_windows_keep_their_rates() -> None:
    path = shared("servegen_deepseek-r1_client_windows.csv")
    table = read_trace(path, seed=3)
    windows = pd.read_csv(path)
    expected = float((windows["rate_rps"] * 600).sum())
    spread = math.sqrt(float((windows["rate_rps"] * 600 * windows["cv"] ** 2).sum()))  # renewal counts
    assert abs(len(table) - expected) < 4 * spread
    assert table["prompt_tokens"].isna().all()


def test_a_drawn_trace_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    rows = "client,window_start_s,rate_rps,cv,pattern,shape,scale\n0,600,0.5,1,Gamma,1,2\n1,0,0.1,2,Weibull,0.5,5\n"
    path = write(tmp_path, "servegen.csv", rows)
    one, two, other = (read_trace(path, seed=seed)["arrival_s"].tolist() for seed in (3, 3, 4))
    assert one == two != other
    assert one == sorted(one)
    assert one[-1] < 1200


@pytest.mark.parametrize("draw", [gamma_window, weibull_window])
def test_a_stationary_window_offers_its_rate_whatever_the_burstiness(draw: Any) -> None:
    rng = np.random.default_rng(1)
    counts = np.array([len(draw(0.3, 0.5, 40.0, rng)) for _ in range(4000)], dtype=float)
    assert stats.ttest_1samp(counts, 20.0).pvalue > 0.005
    first = np.array([draw(0.3, 0.5, 4000.0, rng)[0] for _ in range(2000)])
    mean_square = 4.0 * (
        1 + (1 / 0.3 if draw is gamma_window else math.gamma(1 + 2 / 0.3) / math.gamma(1 + 1 / 0.3) ** 2 - 1)
    )
    assert abs(first.mean() - mean_square / 4.0) < 4 * first.std() / math.sqrt(
        len(first)
    )  # E[residual] = E[g^2] / 2E[g]


@pytest.mark.parametrize(
    ("head", "row"),
    [(BURST6, "{t},ChatGPT,472,{out},490,Conversation log"), (BURST8, "{t},12,3.5,ChatGPT,472,{out},490,API log")],
)
def test_burstgpt_equal_stamps_and_failed_requests(tmp_path: Path, head: str, row: str) -> None:
    rows = [row.format(t=t, out=out) for t, out in [(5, 18), (45, 0), (45, 7), (45, 9), (46, 2)]]
    path = write(tmp_path, "burst.csv", head + "\n".join(rows) + "\n")
    table = read_trace(path)
    assert table["arrival_s"].tolist() == [0, 40, 40, 41]
    assert table["output_tokens"].tolist() == [18, 7, 9, 2]
    assert any("1 rows without output tokens dropped" in note for note in table.attrs["notes"])
    kept = read_trace(path, zero_output="keep")
    assert kept["output_tokens"].tolist() == [18, 0, 7, 9, 2]
    spread = read_trace(path, equal_stamps="spread", zero_output="keep")
    assert spread["arrival_s"].tolist() == pytest.approx([0, 40, 40 + 1 / 3, 40 + 2 / 3, 41])
    jitter = read_trace(path, equal_stamps="jitter", zero_output="keep", seed=1)
    assert jitter["output_tokens"].tolist() == kept["output_tokens"].tolist()  # the file's order stays
    assert ((jitter["arrival_s"][1:4] > 40) & (jitter["arrival_s"][1:4] < 41)).all()
    assert jitter["arrival_s"][4] == 41


BAD = [
    ("azure.csv", AZURE + "2023-11-16 18:15:46.68,3,4\nyesterday,3,4\n", {}, [":3:", "TIMESTAMP", "'yesterday'"]),
    (
        "azure.csv",
        AZURE + "2023-11-16 18:15:46.68,3,4\n\n2023-11-16 18:15:47,-3,4\n",
        {},
        [":4:", "ContextTokens", "-3"],
    ),
    ("b.csv", BURST6 + "5,M,4,4,8,x\n-1,M,4,4,8,x\n", {}, [":3:", "Timestamp", "-1", "at least 0"]),
    ("b.csv", BURST6 + "5,M,4,4,8,x\n,M,4,4,8,x\n,M,4,4,8,x\n", {}, [":3:", "nothing", "1 more rows"]),
    ("b.csv", BURST6 + "5,M,4,4,8,x\n6,M,4.5,4,8,x\n", {}, [":3:", "Request tokens", "4.5", "whole number"]),
    ("b.csv", BURST6 + "5,M,4,,8,x\n", {}, [":2:", "Response tokens", "nothing"]),
    ("b.csv", BURST6 + "5,M,0,4,8,x\n", {}, [":2:", "0 prompt tokens", "zero_prompt: drop"]),
    ("b.csv", BURST6 + "6,M,4,4,8,x\n5,M,4,4,8,x\n", {"unsorted": "refuse"}, [":3:", "before the one above"]),
    ("b.csv", BURST6 + "6,M,4,0,8,x\n", {}, ["no rows left"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n9,M,4,4,8,x\n", {"rate": 9, "rate_by": "thin"}, ["above the trace's own", "time"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n", {"window": [5, 3]}, ["window", "from < to"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n", {"zero_output": "ignore"}, ["zero_output", "'ignore'", "drop, keep"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n", {"windw": [0, 3]}, ["'windw'", "did you mean 'window'"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n", {"format": "burstgtp"}, ["'burstgtp'", "did you mean 'burstgpt'"]),
    ("b.csv", BURST6 + "1,M,4,4,8,x\n", {"format": "azure"}, ["no column 'TIMESTAMP'", "did you mean 'Timestamp'"]),
    ("g.csv", "when,in,out\n1,2,3\n", {}, ["no column 'arrival_s'", "columns: {arrival: NAME"]),
    ("g.csv", "", {}, ["not a CSV file"]),
    ("m.jsonl", '{"timestamp": 0, "input_length": 1}\n{"timestamp": }\n', {}, [":2:", "not JSON"]),
    (
        "m.jsonl",
        '{"timestamp": 0, "input_length": 1, "output_length": 1}\n\n{"timestamp": 1, "input_length": -1, "output_length": 1}',
        {},
        [":3:", "input_length", "-1"],
    ),
    ("m.jsonl", '{"timestamp": 0}\n[3]\n', {}, [":2:", "one JSON object"]),
    ("m.parquet", "nonsense", {}, ["not a Parquet file"]),
]


@pytest.mark.parametrize(("name", "text", "options", "words"), BAD, ids=[" ".join(case[3]) for case in BAD])
def test_a_bad_trace_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str, options: dict[str, Any], words: list[str]
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ValueError, match=r".") as caught:
        read_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none.csv")


def test_unsorted_rows_are_sorted_stably(tmp_path: Path) -> None:
    rows = "".join(f"{t},M,{p},1,1,x\n" for t, p in [(3, 1), (1, 2), (3, 3), (1, 4), (2, 5)])
    table = read_trace(write(tmp_path, "b.csv", BURST6 + rows))
    assert table["arrival_s"].tolist() == [0, 0, 1, 2, 2]
    assert table["prompt_tokens"].tolist() == [2, 4, 5, 1, 3]
    assert any("2 rows went back in time" in note for note in table.attrs["notes"])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_generic_traces_with_named_columns(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame({"at": [1000, 1500, 4000], "in": [5, 6, 7], "out": [1, 2, 3]})
    path = tmp_path / f"generic.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    columns = {"arrival": "at", "prompt": "in", "output": "out"}
    table = read_trace(path, columns=columns, time_unit="ms")
    assert table["arrival_s"].tolist() == [0, 0.5, 3.0]
    assert table["prompt_tokens"].tolist() == [5, 6, 7]


def poisson_trace(tmp_path: Path, n: int = 20_000) -> Path:
    times = arrival_times({"process": "poisson", "rate": 4.0}, n=n, seed=1)
    frame = pd.DataFrame({"arrival_s": times, "prompt_tokens": np.arange(n) % 90 + 1, "output_tokens": 7})
    frame.to_csv(tmp_path / "poisson.csv", index=False)
    return tmp_path / "poisson.csv"


def test_window_limit_rate_and_scale(tmp_path: Path) -> None:
    path = poisson_trace(tmp_path)
    whole = read_trace(path)
    part = read_trace(path, window=[100, 200])
    inside = whole[(whole["arrival_s"] >= 100) & (whole["arrival_s"] < 200)]
    assert part["arrival_s"].tolist() == pytest.approx((inside["arrival_s"] - 100).tolist())
    assert len(read_trace(path, window=[100, 200], limit=50)) == 50
    fast = read_trace(path, window=[100, 200], rate=8.0)
    assert len(fast) == len(part)
    assert fast["arrival_s"].tolist() == pytest.approx((part["arrival_s"] * (len(part) / 100) / 8.0).tolist())
    short = read_trace(path, scale=0.05)
    assert short["prompt_tokens"].tolist() == np.maximum(np.rint(whole["prompt_tokens"] * 0.05), 1).tolist()
    assert whole["prompt_tokens"].max() == 90


def test_thinning_keeps_a_poisson_process_poisson_and_rows_together(tmp_path: Path) -> None:
    path = poisson_trace(tmp_path)
    whole, thin = read_trace(path), read_trace(path, rate=1.0, rate_by="thin", seed=5)
    gaps = np.diff(thin["arrival_s"])
    assert stats.kstest(gaps, stats.expon(scale=gaps.mean()).cdf).pvalue > 0.005
    assert abs(len(thin) - 5000) < 4 * math.sqrt(20_000 * 0.25 * 0.75)
    merged = thin.merge(whole, on="arrival_s", suffixes=("", "_file"))
    assert (merged["prompt_tokens"] == merged["prompt_tokens_file"]).all()
    assert len(merged) == len(thin)


def test_burstiness_of_poisson_constant_and_batches() -> None:
    poisson = arrival_times({"process": "poisson", "rate": 2.0}, n=50_000, seed=2)
    cv, dispersion = burstiness(poisson)
    assert cv == pytest.approx(1, abs=0.03)
    assert dispersion == pytest.approx(1, abs=0.1)
    assert burstiness(np.arange(1000.0))[0] == 0
    assert burstiness(np.repeat(np.arange(1000.0), 5))[0] == pytest.approx(2.0, abs=0.01)
    assert all(math.isnan(value) for value in burstiness(np.array([1.0])))


def test_a_trace_as_arrivals_and_lengths_of_a_study(tmp_path: Path) -> None:
    poisson_trace(tmp_path, 1000)
    (tmp_path / "study.yaml").write_text(
        """\
version: 1
model: m
experiments:
  - name: replay
    arrivals: {process: trace, path: poisson.csv, rate: [2, 4]}
    lengths: {from: trace, scale: 0.5}
    warmup: {requests: 10}
    measure: {requests: 200}
    cooldown: {seconds: 2}
"""
    )
    runs = load_study(tmp_path / "study.yaml").runs
    slow, fast = (plan_requests(run) for run in runs)
    whole = read_trace(tmp_path / "poisson.csv", scale=0.5)
    assert slow.measured == fast.measured == 200
    assert (slow.phases == "warmup").sum() == 10
    assert slow.intended_s[:100] / 2 == pytest.approx(fast.intended_s[:100])
    assert slow.prompt_tokens.tolist() == whole["prompt_tokens"][: len(slow)].tolist()
    assert runs[0].mix_key == runs[1].mix_key
    again = run_lengths(runs[0], 2500)[0]
    assert again.tolist() == [*whole["prompt_tokens"], *whole["prompt_tokens"], *whole["prompt_tokens"][:500]]


def test_lengths_from_a_trace_that_has_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        """\
version: 1
model: m
experiments:
  - name: replay
    arrivals: {process: trace, times: [0, 1, 2, 3]}
    lengths: {from: trace}
    measure: {seconds: 3}
    warmup: {seconds: 0}
"""
    )
    with pytest.raises(ValueError, match="the trace has no lengths"):
        plan_requests(load_study(tmp_path / "study.yaml").runs[0])


def test_given_times_are_kept_stretched_and_checked() -> None:
    assert arrival_times({"process": "trace", "times": [1, 2, 4]}, n=9).tolist() == [1, 2, 4]
    assert np.diff(arrival_times({"process": "trace", "times": [1, 2, 5], "rate": 2}, n=9)).mean() == pytest.approx(0.5)
    for spec, words in [
        ({"times": [1, 0.5]}, "times.1. is 0.5, before 1"),
        ({"times": [1], "window": [0, 3]}, "'window' is for trace files"),
        ({}, "neither of 'path' and 'times'"),
        ({"path": "none.csv"}, "'none.csv', which is no file"),
    ]:
        with pytest.raises(ValueError, match=words):
            arrival_times({"process": "trace", **spec}, n=1)


@pytest.mark.parametrize("limit", [8000, 8191, 8192])
def test_requests_cut_to_the_models_limit_are_counted(tmp_path: Path, limit: int) -> None:
    (tmp_path / "study.yaml").write_text(
        """\
version: 1
model: m
experiments:
  - name: long
    arrivals: {process: constant, rate: 1}
    prompt: 8191
    output: 5
    measure: {requests: 3}
    warmup: {seconds: 0}
    cooldown: {seconds: 0}
"""
    )
    plan = plan_requests(load_study(tmp_path / "study.yaml").runs[0])
    cut = plan.fitted(limit)
    assert (cut.prompt_tokens + cut.output_tokens == limit).all()
    assert cut.prompt_tokens[0] == min(8191, limit - 1)
    assert cut.notes == (f"3 of 3 requests cut to the model's limit of {limit} tokens",)
    assert plan.fitted(8196) is plan
