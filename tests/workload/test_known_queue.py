"""A known queue as the target of a study: no model, no calibration, an exact load, and the textbook's waits in its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.compare import MODELS, compare, compare_study
from analysis.queues import MD1, MM1, ClosedNetwork, MMc
from analysis.report import report_study
from analysis.runs import Run, open_run
from analysis.simulation.recursions import kiefer_wolfowitz
from analysis.study import open_study
from workload.describe import describe
from workload.experiment import load_study
from workload.known_queue import parse_target
from workload.processes.responsive import think_time
from workload.run import main

STUDY = """\
version: 1
seed: 4
experiments:
  - name: mm1
    target: {kind: stub, service: {dist: exponential, mean: 0.01}}
    arrivals: {process: poisson, load: 0.6}
    warmup: {requests: 300}
    measure: {requests: 3000}
    compare: [mm1, md1]
  - name: md1
    target: {kind: stub, service: 0.02}
    arrivals: {process: poisson, load: 0.6}
    warmup: {seconds: 1}
    measure: {requests: 3000}
    compare: [md1]
  - name: several
    target: {kind: stub, service: {dist: exponential, mean: 0.01}, servers: [2, 3]}
    arrivals: {process: poisson, load: 0.6}
    warmup: {seconds: 1}
    measure: {requests: 3000}
    compare: [mmc]
  - name: closed
    target: {kind: stub, service: {dist: exponential, mean: 0.01}}
    arrivals: {process: closed, clients: 4, load: 0.7}
    warmup: {seconds: 1}
    measure: {seconds: 20}
  - name: overload
    target: {kind: stub, service: {dist: exponential, mean: 0.01}}
    arrivals: {process: poisson, load: {of: mm1, value: 1.4}}
    warmup: {seconds: 0}
    measure: {requests: 500}
    compare: [mm1]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in virtual time, as ``--simulate`` runs it."""
    folder = tmp_path_factory.mktemp("known")
    (folder / "queues.yaml").write_text(STUDY)
    assert main([str(folder / "queues.yaml"), "--simulate", "--quiet", "--out", str(folder)]) == 0
    return folder / "queues.simulated"


def only(results: Path, pattern: str) -> Run:
    (path,) = results.glob(f"{pattern}/0")
    return open_run(path)


@pytest.mark.parametrize(
    ("pattern", "rate", "servers"),
    [("mm1/*", 60, 1), ("md1/*", 30, 1), ("several/servers=3", 180, 3), ("overload/*", 140, 1)],
)
def test_a_load_is_the_rate_over_servers_by_mean_service_time(
    results: Path, pattern: str, rate: float, servers: int
) -> None:
    run = only(results, pattern)
    assert run.meta["rate"] == pytest.approx(rate, rel=1e-12)
    assert (run.meta["kind"], run.meta["status"]) == ("measurement", "complete")
    assert run.meta["spec"]["target"]["kind"] == run.meta["engine"]["target"] == "stub"
    assert run.meta["spec"]["target"]["servers"] == servers
    assert not (results / "calibration").exists()


@pytest.mark.parametrize(("pattern", "c"), [("mm1/*", 1), ("md1/*", 1), ("several/servers=2", 2)])
def test_sojourns_are_those_of_the_recursion(results: Path, pattern: str, c: int) -> None:
    rows = only(results, pattern).requests.sort_values("intended_s")
    rows = rows[rows["finish_reason"] == "length"]
    service = (rows["done_s"] - rows["scheduled_s"]).to_numpy()
    expected = kiefer_wolfowitz(rows["intended_s"].to_numpy(), service, c) + service
    assert (rows["finished_s"] - rows["intended_s"]).to_numpy() == pytest.approx(expected, abs=1e-9)


def test_service_times_follow_their_law_and_no_other_stream(results: Path) -> None:
    rows = only(results, "mm1/*").requests.sort_values("intended_s")
    service = (rows["done_s"] - rows["scheduled_s"]).dropna().to_numpy()
    assert service.mean() == pytest.approx(0.01, abs=3.3 * 0.01 / np.sqrt(service.size))
    gaps = np.diff(rows["intended_s"].to_numpy())[: service.size - 1]
    assert abs(np.corrcoef(gaps, service[1:])[0, 1]) < 3.3 / np.sqrt(service.size)


def test_the_models_hold_the_textbook_against_the_clients_stamps(results: Path) -> None:
    table = compare_study(open_study(results)).set_index(["run", "model", "quantity"])
    theory = {
        ("mm1/load=0.6/0", "mm1"): MM1(60, 100),
        ("md1/load=0.6/0", "md1"): MD1(30, 0.02),
        ("several/servers=2/0", "mmc"): MMc(120, 100, 2),
        ("several/servers=3/0", "mmc"): MMc(180, 100, 3),
    }
    for (run, model), queue in theory.items():
        for quantity, value in (("mean wait", queue.Wq), ("mean sojourn", queue.W)):
            row = table.loc[(run, model, quantity)]
            assert row["prediction"] == pytest.approx(value)
            assert row["low"] < row["measured"] < row["high"]
            assert row["verdict"] in ("agrees", "too short")  # so few requests may not tell 30 %
    wrong = table.loc[("mm1/load=0.6/0", "md1")]["verdict"]
    assert all(verdict.startswith("not applicable: the queue has 1 server with exponential") for verdict in wrong)
    assert set(table.loc[("overload/load=1.4/0", "mm1")]["verdict"]) == {"unstable"}


def test_a_closed_loop_thinks_so_that_the_throughput_is_the_load(results: Path) -> None:
    """Against mean-value analysis in ``analysis``; of 1,400 completions the standard error is below 3 %."""
    for clients, load in ((1, 0.3), (4, 0.7), (16, 0.95)):
        think = think_time(clients, 0.01, 100 * load)
        theory = ClosedNetwork(N=clients, Z=think, demands=[0.01])
        assert pytest.approx(100 * load) == theory.X
    run = only(results, "closed/load=0.7")
    start, end = run.window
    ended = run.requests["finished_s"]
    assert ((ended >= start) & (ended < end)).sum() / (end - start) == pytest.approx(70, rel=0.1)
    assert run.requests["session_id"].nunique() == 4
    assert run.meta["notes"][0].startswith("think times of mean 0.0")


def test_late_stamps_differ_from_the_textbook(results: Path) -> None:
    run = only(results, "mm1/*")
    late = run.requests.copy()
    late["finished_s"] += 0.020
    table = compare(Run.from_tables(late, meta=run.meta), models=["mm1"])
    assert set(table["verdict"]) == {"differs"}


def test_a_queue_is_not_held_against_models_of_engines_unless_asked(results: Path) -> None:
    run = only(results, "closed/*")
    assert set(compare(run)["model"]) == {"mm1", "md1", "mmc"}
    assert {"mm1", "md1", "mmc"} < set(MODELS)


def test_the_report_calls_it_a_known_queue_and_no_engine(results: Path) -> None:
    report = report_study(results)
    page = report.html.read_text()
    assert "known queue, not an engine" in page
    assert "seats (requests computed together)" not in page
    line = next(line for line in report.text.splitlines() if line.startswith("several/servers=2"))
    assert 0.57 < float(line.split()[3]) < 0.63  # the load, which no calibration was needed for


def test_a_dry_run_knows_rate_and_time(tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text(STUDY)
    rows = {(row.experiment, row.point): row for row in describe(load_study(tmp_path / "queues.yaml"))}
    row = rows["mm1", "load=0.6"]
    assert (row.rate, row.load, row.requests) == (pytest.approx(60), 0.6, 3000)
    assert row.seconds == pytest.approx(3300 / 60)
    assert rows["overload", "load=1.4"].rate == pytest.approx(140)


def test_in_real_time_resumed_runs_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.yaml").write_text(
        "version: 1\nexperiments:\n  - name: short\n    target: {kind: stub, service: {dist: exponential, mean: 0.001}}\n"
        "    arrivals: {process: poisson, load: [0.3, 0.5]}\n    measure: {seconds: 0.5}\n    warmup: {seconds: 0}\n"
    )
    command = [str(tmp_path / "short.yaml"), "--out", str(tmp_path)]
    assert main(command) == 0
    first = {path: path.read_bytes() for path in (tmp_path / "short").glob("*/*/*/run.json")}
    assert len(first) == 2
    capsys.readouterr()
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().out.count("kept, it is complete") == 2
    assert {path: path.read_bytes() for path in first} == first
    assert all("simulated" not in json.loads(text) for text in first.values())


MISTAKES = [
    ("kind: stub, service: 0.01, servers: 0", "target.servers: found 0"),
    ("kind: stub, service: 0", "target.service: .*a mean service time above 0 is allowed"),
    ("kind: stab, service: 1", "did you mean 'stub'"),
    ("kind: stub, service: 1}, prompt: {dist: fixed, value: 3", "prompt: given beside 'target'"),
    ("kind: stub, service: 1}, engine: {max_num_seqs: 2", "engine: given beside 'target'"),
]


@pytest.mark.parametrize(("target", "problem"), MISTAKES)
def test_mistakes_are_told_with_their_line(tmp_path: Path, target: str, problem: str) -> None:
    (tmp_path / "bad.yaml").write_text(
        "version: 1\nexperiments:\n"
        f"  - {{name: a, arrivals: {{process: poisson, rate: 1}}, measure: {{seconds: 1}}, target: {{{target}}}}}\n"
    )
    with pytest.raises(
        ValueError, match=rf"bad\.yaml:3: experiments\[0\]\.{problem}" if "did" not in problem else problem
    ):
        load_study(tmp_path / "bad.yaml")


def test_an_engine_needs_a_model_and_loads_do_not_cross(tmp_path: Path) -> None:
    queue = "{name: q, arrivals: {process: poisson, load: .5}, measure: {seconds: 1}, target: {kind: stub, service: 1}}"
    engine = (
        "{name: e, arrivals: {process: poisson, load: {of: q, value: 1}}, measure: {seconds: 1}, prompt: 1, output: 1}"
    )
    (tmp_path / "none.yaml").write_text(f"version: 1\nexperiments: [{queue}, {engine}]\n")
    with pytest.raises(ValueError, match="the key 'model' is missing"):
        load_study(tmp_path / "none.yaml")
    (tmp_path / "cross.yaml").write_text(f"version: 1\nmodel: m\nexperiments: [{queue}, {engine}]\n")
    with pytest.raises(ValueError, match="one of the two is an engine, the other a known queue"):
        load_study(tmp_path / "cross.yaml")


def test_the_stream_of_service_times_is_the_same_for_a_seed() -> None:
    queue = parse_target({"kind": "stub", "service": {"dist": "exponential", "mean": 2.0}, "servers": 4})
    assert queue.capacity == 2.0
    first, again, other = (queue.service_times(seed) for seed in (1, 1, 2))
    drawn = [next(first) for _ in range(5000)]
    assert drawn == [next(again) for _ in range(5000)]
    assert drawn[:3] != [next(other) for _ in range(3)]
