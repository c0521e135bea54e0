"""A study file becomes the run list it asks for, and every mistake in it is told with its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from workload.arrivals import arrival_times
from workload.describe import describe, mm1_half_width, plan_text
from workload.experiment import Study, StudyError, load_study
from workload.plan import plan_requests

HEAD = """\
version: 1
model: smollm2-135m-instruct
seed: 1
engine: {max_num_seqs: 16, max_num_batched_tokens: 256, policy: fcfs}
workload: &chat
  prompt: {dist: lognormal, mean: 48, cv: 0.8, min: 4, max: 512}
  output: {dist: geometric, mean: 24, max: 256}
slo: {ttft_ms: 500, tpot_ms: 80, attain: 0.95}
experiments:
"""
HEAD_LINES = HEAD.count("\n")
ONE = """\
  - name: one
    arrivals: {process: poisson, rate: 5}
    measure: {requests: 100}
"""


@pytest.fixture
def study(tmp_path: Path):  # type: ignore[no-untyped-def]
    def load(experiments: str = ONE, head: str = HEAD, **options: object) -> Study:
        path = tmp_path / "study.yaml"
        path.write_text(head + experiments)
        return load_study(path, **options)  # type: ignore[arg-type]

    return load


def test_the_design_example_gives_its_runs(study) -> None:  # type: ignore[no-untyped-def]
    loaded = study(
        """\
  - name: hockey-stick
    arrivals: {process: poisson, load: [0.3, 0.55, 0.8]}
    warmup: {seconds: 5}
    measure: {seconds: 27}
    replications: 2
    compare: [simulation, ps]
  - name: one-seat
    engine: {max_num_seqs: 1}
    arrivals: {process: poisson, load: 0.7}
    measure: {requests: 1000}
    compare: [mg1, lindley]
"""
    )
    assert [run.run_dir for run in loaded.runs] == [
        *(f"hockey-stick/load={load}/{r}" for load in (0.3, 0.55, 0.8) for r in (0, 1)),
        "one-seat/load=0.7/0",
    ]
    first, last = loaded.runs[0], loaded.runs[-1]
    assert last.engine == {"max_num_seqs": 1, "max_num_batched_tokens": 256, "policy": "fcfs"}
    assert first.compare == ("simulation", "ps")
    assert first.slo.ttft_ms == 500
    assert loaded.name == "study"
    assert json.loads(json.dumps(last.to_dict()))["arrivals"]["load"] == 0.7
    assert first.mix_key == loaded.runs[5].mix_key != last.mix_key


def test_points_of_a_sweep_share_randomness_and_replications_do_not(study) -> None:  # type: ignore[no-untyped-def]
    loaded = study(
        """\
  - name: sweep
    arrivals: {process: poisson, rate: [1, 2]}
    measure: {seconds: 300}
    replications: 2
    repeats: 2
  - {name: other, arrivals: {process: poisson, rate: 1}, measure: {seconds: 300}}
  - {name: twin, seed_group: sweep, arrivals: {process: poisson, rate: 1}, measure: {seconds: 300}}
"""
    )
    plans = {run.run_dir: plan_requests(run) for run in loaded.runs}
    slow, fast = plans["sweep/rate=1/0.0"], plans["sweep/rate=2/0.0"]
    n = len(slow)
    assert np.array_equal(slow.intended_s[: n // 2] / 2, fast.intended_s[: n // 2])
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens[:n])
    assert np.array_equal(slow.intended_s, plans["sweep/rate=1/0.1"].intended_s)  # a repeat
    assert np.array_equal(slow.intended_s, plans["twin/rate=1/0"].intended_s)  # the same seed group
    for different in ("sweep/rate=1/1.0", "other/rate=1/0"):
        assert not np.array_equal(slow.intended_s[:50], plans[different].intended_s[:50])
    seeds = [seed for run in loaded.runs[::2] for seed in run.seeds.to_dict().values()]
    by_run = {tuple(run.seeds.to_dict().values()) for run in loaded.runs}
    assert len({seed for seeds in by_run for seed in seeds}) == 8 * len(by_run)  # no seed serves two purposes
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_adding_an_experiment_leaves_the_others_as_they_were(study) -> None:  # type: ignore[no-untyped-def]
    more = "  - {name: new, arrivals: {process: poisson, rate: 9}, measure: {seconds: 3}}\n"
    assert study(ONE).runs[0] == study(more + ONE).runs[1]
    assert study(ONE, seed=2).runs[0].seeds != study(ONE).runs[0].seeds


def test_lists_multiply_and_zip_pairs(study) -> None:  # type: ignore[no-untyped-def]
    sweep = """\
  - name: grid
    arrivals: {process: gamma, cv: [1, 3], rate: 2}
    engine: {max_num_seqs: [4, 8, 16]}
    output: {dist: geometric, mean: 24}
    measure: {seconds: 9}
"""
    points = [run.point for run in study(sweep).runs]
    assert len(set(points)) == 6
    assert "max_num_seqs=4,cv=3" in points or "cv=3,max_num_seqs=4" in points
    paired = sweep.replace("[4, 8, 16]", "[4, 8]") + "    zip: true\n"
    assert [(run.engine["max_num_seqs"], run.arrivals.cv) for run in study(paired).runs] == [(4, 1), (8, 3)]
    with pytest.raises(StudyError, match=r"study.yaml:15: .*zip: found lists of unequal length .*3.*2"):
        study(sweep + "    zip: true\n")


def test_twin_keys_are_told_apart_and_own_lists_do_not_sweep(study) -> None:  # type: ignore[no-untyped-def]
    twins = """\
  - name: twins
    arrivals: {process: mmpp, rates: [1, 9], sojourn: [9, 1], load: [0.5, 0.7]}
    prompt: {dist: exponential, mean: [10, 20]}
    output: {dist: exponential, mean: [5, 6]}
    measure: {seconds: 9}
"""
    points = {run.point for run in study(twins).runs}
    assert len(points) == 8
    assert "prompt.mean=10,output.mean=5,load=0.5" in points


def test_whole_processes_can_be_swept(study) -> None:  # type: ignore[no-untyped-def]
    runs = study(
        """\
  - name: which
    arrivals: [{process: poisson, rate: 5}, {process: gamma, rate: 5, cv: 3}]
    prompt: [16, 64]
    measure: {seconds: 9}
"""
    ).runs
    assert [run.point for run in runs] == [
        f"prompt={tokens},arrivals={name}" for tokens in (16, 64) for name in ("poisson", "gamma")
    ]


def test_anchors_merge_and_workload_overrides(study) -> None:  # type: ignore[no-untyped-def]
    runs = study(
        """\
  - &base
    name: a
    arrivals: {process: poisson, rate: 5}
    measure: {seconds: 9}
  - <<: *base
    name: b
    workload: {<<: *chat, output: 7, natural: true}
  - {<<: *base, name: c, output: 9}
"""
    ).runs
    assert [run.output.longest for run in runs] == [256, 7, 9]
    assert [run.natural for run in runs] == [False, True, False]
    assert runs[1].prompt == runs[0].prompt


def test_load_of_another_experiment(study) -> None:  # type: ignore[no-untyped-def]
    text = """\
  - {name: base, arrivals: {process: poisson, load: 0.5}, measure: {seconds: 9}}
  - name: fast
    engine: {max_num_seqs: 2}
    arrivals: {process: poisson, load: {of: base, value: [0.8, 1.3]}}
    measure: {seconds: 9}
"""
    loaded = study(text)
    assert [run.point for run in loaded.runs] == ["load=0.5", "load=0.8", "load=1.3"]
    assert loaded.capacity_run(loaded.runs[2]) == loaded.runs[0]
    assert loaded.capacity_run(loaded.runs[0]) == loaded.runs[0]


BROKEN = [  # experiments, line below the head (0: in the head), words of the message
    ("  - {name: one, arivals: {process: poisson, rate: 5}, measure: {seconds: 1}}\n", 1, ["'arivals'", "'arrivals'"]),
    (ONE.replace("rate: 5", "rate: 0"), 2, ["experiments[0].arrivals.rate", "found 0", "greater than 0"]),
    (ONE.replace("rate: 5", "rate: [5, 0]"), 2, ["experiments[0].arrivals.rate[1]", "found 0", "greater than 0"]),
    (ONE.replace("poisson", "poison"), 2, ["arrivals.process", "did you mean 'poisson'", "gamma"]),
    (ONE.replace("rate: 5", "rate: fast"), 2, ["arrivals.rate", "'fast'", "number"]),
    (ONE.replace("{requests: 100}", "{requests: 100, seconds: 3}"), 3, ["measure", "both"]),
    (ONE.replace("{requests: 100}", "{requests: 0}"), 3, ["measure: found 0; more than 0 seconds"]),
    (ONE.replace("{requests: 100}", "100"), 3, ["measure", "100", "mapping"]),
    (ONE + "    natural: yes\n", 4, ["natural", "'yes'", "true or false"]),
    (ONE + "    engine: {max_num_seq: 4}\n", 4, ["max_num_seq", "did you mean 'max_num_seqs'"]),
    (ONE + "    engine: {max_num_seqs: 0}\n", 4, ["engine.max_num_seqs", "0", "at least 1"]),
    (ONE + "    engine: {max_num_seqs: many}\n", 4, ["engine.max_num_seqs", "'many'", "int"]),
    (ONE + "    engine:\n      policy: [fcfs,\n        fifo]\n", 6, ["engine.policy[1]", "fifo", "fcfs"]),
    (ONE + "    engine: {seed: 3}\n", 4, ["engine.seed", "not allowed here", "study's seed"]),
    (ONE + "    prompt: {dist: lognorm, mean: 4, cv: 1}\n", 4, ["prompt.dist", "did you mean 'lognormal'"]),
    (ONE + "    prompt: {dist: uniform, min: 9, max: 3}\n", 4, ["prompt", "min = 9", "max = 3"]),
    (ONE + "    prompt: 0\n", 4, ["prompt", "found 0", "greater than or equal to 1"]),
    (ONE + "    lengths: {from: trace}\n", 4, ["lengths.from", "'poisson'", "process: trace"]),
    (ONE + "    prompt: 3\n    workload: {prompt: 4}\n", 4, ["prompt", "give it once"]),
    (ONE + "    replications: 0\n", 4, ["replications", "found 0", "greater than or equal to 1"]),
    (ONE + "    slo: {ttft: 4}\n", 4, ["slo.ttft", "did you mean 'ttft_ms'"]),
    (ONE + "    prompts: {kind: rndom}\n", 4, ["prompts.kind", "did you mean 'random'"]),
    (ONE + ONE, 4, ["'one' again", f"line {HEAD_LINES + 1}", "unique"]),
    (ONE.replace("name: one", "name: a/b"), 1, ["name", "'a/b'"]),
    (ONE.replace("rate: 5", "load: {of: on, value: 1}"), 2, ["load.of", "did you mean 'one'"]),
    (ONE.replace("rate: 5", "load: {off: one, value: 1}"), 2, ["'off'", "did you mean 'of'"]),
    (ONE.replace("rate: 5", "load: []"), 2, ["arrivals.load", "empty list"]),
    (ONE.replace("rate: 5", "rate: [5, 5]"), 2, ["rate=5", "twice"]),
    (ONE + "    name: two\n", 4, ["duplicate key"]),
    (ONE + "    compare: [\n", 5, ["not valid YAML"]),
    (
        ONE.replace("process: poisson", "process: trace, path: none.csv"),
        2,
        ["arrivals.path", "'none.csv'", "is no file"],
    ),
    (
        ONE + "    prompt: {dist: empirical, path: [no.csv], column: a}\n",
        4,
        ["prompt.path[0]", "'no.csv'", "is no file"],
    ),
    (ONE + "    timeout: 3\n", 4, ["timeout", "found 3", "mapping", "seconds"]),
    (ONE + "    max_concurrency: 0\n", 4, ["max_concurrency", "found 0", "greater than or equal to 1"]),
    (ONE + "    record: {tokens: auto}\n", 4, ["record.tokens", "'auto'", "true or false"]),
    (ONE + "    record: {prompts: yess}\n", 4, ["record.prompts", "'yess'"]),
    (ONE + "    priority: {values: [0, 1], shares: [1.0]}\n", 4, ["priority", "2 values and 1 shares"]),
    (ONE + "    priority: {values: [0, 1], shares: [0.5, 0.4]}\n", 4, ["priority", "add up to 0.9"]),
    (
        ONE.replace("rate: 5", "rate: 5, turns: 2, think: 1").replace("poisson", "sessions")
        + "    priority: {values: [0], shares: [1]}\n",
        4,
        ["priority", "sessions"],
    ),
    (ONE.replace("poisson, rate: 5", "closed, clients: 2"), 3, ["measure.requests", "'closed'", "seconds are allowed"]),
    (
        ONE.replace("poisson, rate: 5", "closed, clients: 2, think: {dist: expo, mean: 1}"),
        2,
        ["arrivals.think.dist", "did you mean 'exponential'"],
    ),
    (
        ONE.replace("poisson, rate: 5", "closed, clients: 2, think: [1, {dist: lognormal, mean: 1}]").replace(
            "requests: 100", "seconds: 9"
        ),
        2,
        ["arrivals.think[1]", "'cv' is missing"],
    ),
    (
        ONE.replace("poisson, rate: 5", "sessions, rate: 1, turns: {dist: geometric, mean: 0.5}"),
        2,
        ["arrivals.turns.mean", "found 0.5", "greater than or equal to 1"],
    ),
    (ONE.replace("poisson, rate: 5", "mmpp, rates: [1], sojourn: [1, 2]"), 2, ["arrivals.rates", "at least 2 values"]),
    (ONE.replace("poisson, rate: 5", "piecewise, profile: [[0, 1], [5]]"), 2, ["profile[1]", "found [5]", "2 values"]),
    (
        ONE.replace("poisson, rate: 5", "trace, path: study.yaml, columns: {arival: t}"),
        2,
        ["columns.arival:", "did you mean 'arrival'"],
    ),
    (
        ONE.replace("poisson, rate: 5", "trace, path: study.yaml, format: cvs"),
        2,
        ["arrivals.format", "did you mean 'csv'"],
    ),
    (ONE.replace("poisson, rate: 5", "trace, path: study.yaml"), 2, ["arrivals.path", "study.yaml: not a CSV file"]),
    (ONE + "    prompts: {kind: hash_ids}\n", 2, ["hash_ids", "need a trace"]),
    (
        ONE + "    output: {dist: empirical, path: study.yaml, column: model}\n",
        4,
        ["output.path", "study.yaml: not a CSV file"],
    ),
    (ONE + "    output: 2.5\n", 4, ["output.value", "found 2.5", "a whole number"]),
    (ONE + "    seed_group: a b\n", 4, ["seed_group", "'a b'", "letters, digits"]),
    (ONE + "    compare: mg1\n", 4, ["compare", "'mg1'", "a list"]),
    (ONE + "    engine:\n", 4, ["engine", "found nothing", "a mapping"]),
    (ONE + "    3: 4\n", 4, ["found 3", "string"]),
    ("  - 3\n", 1, ["experiments[0]", "found 3", "mapping"]),
    ("  []\n", 0, ["found no experiment"]),
]


@pytest.mark.parametrize(("text", "line", "words"), BROKEN, ids=[" ".join(case[2]) for case in BROKEN])
def test_a_mistake_is_one_line_with_file_line_key_found_and_allowed(study, text, line, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError) as caught:
        study(text)
    message = str(caught.value)
    assert "\n" not in message
    assert f"study.yaml:{HEAD_LINES + line}:" in message, message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("head", "line", "words"),
    [
        (HEAD.replace("version: 1", "version: 2"), 1, ["version", "found 2", "allowed: 1"]),
        (HEAD.replace("model: smollm2-135m-instruct\n", ""), 1, ["'model' is missing"]),
        (HEAD.replace("seed: 1", "sed: 1"), 3, ["'sed'", "did you mean 'seed'"]),
        (HEAD.replace("policy: fcfs", "policy: lifo"), 4, ["engine.policy", "lifo", "fcfs"]),
        (HEAD.replace("max_num_seqs: 16", "max_num_seqs: 512"), 4, ["max_num_batched_tokens", "256", "512"]),
        (HEAD.replace("mean: 48", "mean: -1"), 6, ["workload.prompt.mean", "found -1", "greater than 0"]),
        (HEAD.replace("  output: ", "  outptu: "), 7, ["workload.outptu", "did you mean 'output'"]),
        (HEAD.replace("attain: 0.95", "attain: 95"), 8, ["slo.attain", "95", "less than or equal to 1"]),
    ],
)
def test_a_mistake_in_the_defaults_is_told_where_it_stands(study, head, line, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError) as caught:
        study(ONE, head=head)
    message = str(caught.value)
    assert f"study.yaml:{line}:" in message, message
    assert all(word in message for word in words), message


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"none\.yaml: can't read the study: No such file"):
        load_study(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(StudyError, match=r"empty\.yaml:1: found nothing"):
        load_study(tmp_path / "empty.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(StudyError, match=r"list\.yaml:1: found a list; a study is a mapping"):
        load_study(tmp_path / "list.yaml")
    (tmp_path / "deep.yaml").write_text("a: " + "[" * 3000)
    with pytest.raises(StudyError, match=r"deep\.yaml: can't read the study: it is nested too deeply"):
        load_study(tmp_path / "deep.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match="not UTF-8"):
        load_study(tmp_path / "bytes.yaml")


def test_names_under_compare_are_checked_against_the_models_known(study) -> None:  # type: ignore[no-untyped-def]
    text = ONE + "    compare: [mg1, lindly]\n"
    assert study(text).runs[0].compare == ("mg1", "lindly")
    with pytest.raises(
        StudyError, match=r":13: experiments\[0\]\.compare\[1\]: found 'lindly'; did you mean 'lindley'"
    ):
        study(text, models=["mg1", "lindley"])


def test_phases_of_a_plan(study) -> None:  # type: ignore[no-untyped-def]
    run = study(ONE + "    warmup: {seconds: 4}\n    cooldown: {seconds: 3}\n").runs[0]
    plan = plan_requests(run)
    assert plan.measured == 100
    assert (plan.intended_s[plan.phases == "warmup"] < 4).all()
    measured = plan.intended_s[plan.phases == "measure"]
    assert measured[0] >= 4
    assert measured[-1] < plan.measure_end_s
    after = plan.intended_s[plan.phases == "cooldown"]
    assert after[0] == plan.measure_end_s
    assert after[-1] < plan.measure_end_s + 3
    assert np.array_equal(plan.intended_s, arrival_times(run.arrivals, n=len(plan), seed=run.seeds.arrivals))
    with pytest.raises(ValueError, match="at_rate"):
        plan_requests(study(ONE.replace("rate: 5", "load: 0.5")).runs[0])


def test_fixed_count_holds_for_warmup_and_measurement_together(study) -> None:  # type: ignore[no-untyped-def]
    text = ONE.replace("rate: 5", "rate: 5, fixed_count: true").replace("{requests: 100}", "{seconds: 36}")
    plan = plan_requests(study(text + "    warmup: {seconds: 4}\n").runs[0])
    assert (plan.intended_s < 40).sum() == 200


def test_the_plan_of_a_study_counts_requests_and_seconds(study) -> None:  # type: ignore[no-untyped-def]
    rows = describe(study(ONE.replace("rate: 5", "rate: [5, 10]") + "    replications: 4\n"), capacity=lambda run: 20.0)
    assert [(row.runs, row.rate, row.load, row.requests) for row in rows] == [(4, 5, 0.25, 100), (4, 10, 0.5, 100)]
    assert rows[0].seconds == pytest.approx(5 + 100 / 5)
    assert rows[1].half_width == pytest.approx(mm1_half_width(0.5, 400))
    unknown = describe(study(ONE.replace("rate: 5", "load: 0.5")))[0]
    assert (unknown.rate, unknown.seconds, unknown.per_capacity, unknown.load) == (None, 5.0, 200.0, 0.5)


def test_the_expected_half_width_covers_95_percent_of_simulated_mm1_runs() -> None:
    load, n, runs = 0.5, 4000, 400
    rng = np.random.default_rng(1)
    means = []
    gaps = rng.exponential(1 / load, (runs, n))
    services = rng.exponential(1.0, (runs, n))
    wait = rng.exponential(1 / (1 - load), runs) * (rng.random(runs) < load)  # stationary start
    total = np.zeros(runs)
    for i in range(n):  # Lindley, all runs at once
        total += wait + services[:, i]
        wait = np.maximum(wait + services[:, i] - gaps[:, i], 0)
    means = total / n
    half = mm1_half_width(load, n) * 2.0  # the mean time in system is 1 / (1 - load) = 2
    inside = (np.abs(means - 2.0) <= half).sum()
    assert 0.90 <= inside / runs <= 0.99


def test_the_plan_text_has_one_line_a_point_and_the_total(study) -> None:  # type: ignore[no-untyped-def]
    text = ONE.replace("rate: 5", "rate: [5, 10]") + "    replications: 4\n"
    more = "  - {name: replay, arrivals: {process: trace, times: [0, 1, 2]}, measure: {requests: 3}}\n"
    lines = plan_text(study(text), capacity=lambda run: 20.0).splitlines()
    assert lines[1].split() == ["one", "rate=5", "4", "poisson", "5", "0.25", "25", "100", "±21", "%"]
    assert lines[-1].startswith("2 points, 8 runs, warm-up and measurement 160 s; ")
    assert "165 s and more" in plan_text(study(text + more))
