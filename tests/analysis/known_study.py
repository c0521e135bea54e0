"""A whole results folder whose truth is known: the engine's core in virtual time with a linear step time, written to disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from analysis.runs import Run
from analysis.simulation import simulate_engine
from engine.executors.step_time import LinearStepTime
from workload.calibrate import saturated_loop, step_grid
from workload.loops import RequestList
from workload.phases import Phases
from workload.plan import RequestPlan
from workload.prompts import TokenSource

TRUTH = LinearStepTime(base_s=0.010, decode_seqs=0.001, prefill_tokens=1e-4, kv_tokens=1e-6)
SEATS = 8
WARMUP_S = 5.0


def write_study(
    folder: Path,
    sweep: tuple[float, ...] = (0.3, 0.6),
    overload: float | None = 1.5,
    measure_s: float = 40.0,
    true: LinearStepTime = TRUTH,
) -> Path:
    """``one-seat`` at load .5, ``sweep`` at the loads given, ``overload``, and a calibration for each number of seats."""
    capacity = {seats: _calibrate(folder, seats) for seats in (1, SEATS)}
    _measure(folder, "one-seat", 1, 0.5, capacity[1], 6 * measure_s, ["mg1", "lindley"], true=true)
    for load in sweep:
        _measure(folder, "sweep", SEATS, load, capacity[SEATS], measure_s, ["simulation", "ps"], true=true)
    if overload is not None:
        _measure(folder, "overload", SEATS, overload, capacity[SEATS], measure_s, [], load_of="sweep", true=true)
    return folder


def draw_plan(rate: float, measure_s: float, seed: int = 5, process: str = "poisson") -> RequestPlan:
    """Poisson (or evenly spaced) arrivals, geometric outputs of mean 20, prompts of 4 to 28 tokens."""
    rng = np.random.default_rng(seed)
    n = round(1.5 * rate * (WARMUP_S + measure_s + 20)) + 40
    gaps = rng.exponential(1.0, n) if process == "poisson" else np.ones(n)
    intended = np.cumsum(gaps) / rate
    outputs = np.minimum(rng.geometric(1 / 20, n), 200)
    phases = np.full(n, "cooldown", dtype="<U8")
    phases[intended < WARMUP_S + measure_s] = "measure"
    phases[intended < WARMUP_S] = "warmup"
    return RequestPlan(intended, rng.integers(4, 29, n), outputs, outputs, phases, WARMUP_S, WARMUP_S + measure_s)


def engine_facts(seats: int) -> dict[str, Any]:
    """What an engine with so many seats says of itself."""
    scheduling = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": 256,
        "block_size": 16,
        "num_kv_blocks": 4096,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "watermark": 0.01,
        "policy": "fcfs",
        "ageing": 0.0,
        "max_queue": None,
    }
    return {"fingerprints": {"execution": {"executor": "simulated", "digest": "known"}, "scheduling": scheduling}}


def run_plan(plan: RequestPlan, seats: int, rate: float, true: LinearStepTime = TRUTH, **spec: Any) -> Run:
    """The plan on the engine of known truth, as a measured run in memory."""
    run = simulate_engine(plan, true, engine_facts(seats), cooldown_limit_s=10.0)
    run.meta |= {"kind": "measurement", "rate": rate, "engine": {"max_num_seqs": seats, "max_num_batched_tokens": 256}}
    run.meta["fingerprints"] = engine_facts(seats)["fingerprints"]
    run.meta["spec"] = {**_spec(seats), "arrivals": {"process": "poisson"}, **spec}
    return run


def write_run(folder: Path, run: Run, **about: Any) -> None:
    """The run as a directory."""
    folder.mkdir(parents=True)
    for name in ("requests", "tokens", "steps", "batch", "gauge"):
        getattr(run, name).to_parquet(folder / f"{name}.parquet")
    (folder / "run.json").write_text(json.dumps({"schema_version": 1, **run.meta, **about}))


def _spec(seats: int) -> dict[str, Any]:
    return {
        "model": "known",
        "engine": {"max_num_seqs": seats},
        "prompt": {},
        "output": {},
        "cooldown": {"seconds": 10.0},
    }


def _calibrate(folder: Path, seats: int) -> float:
    label = "one-seat" if seats == 1 else "sweep"
    plan = draw_plan(20.0, 60.0, seed=9)
    source = TokenSource(1000, [], 1)
    limits = {"max_num_seqs": seats, "max_num_batched_tokens": 256, "max_prompt": 1000}
    grid = simulate_engine(
        step_grid(plan.prompt_tokens, plan.output_tokens, source=source, **limits),
        TRUTH,
        engine_facts(seats),
        phases=Phases(0.0, 1e9),
    )
    prompts = [source.tokens(2, i, int(length)) for i, length in enumerate(plan.prompt_tokens)]
    requests = RequestList(prompts, plan.output_tokens, natural=False, seed=1, predicted=None)
    about = {"kind": "calibration", "spec": _spec(seats), "engine": {"max_num_seqs": seats}, **engine_facts(seats)}
    write_run(folder / "calibration" / label / "grid", grid, **about)
    for when in ("before", "after"):
        loop = saturated_loop(requests, seats)
        full = simulate_engine(loop, TRUTH, engine_facts(seats), phases=Phases(2.0, 32.0), cooldown_limit_s=0.0)
        write_run(folder / "calibration" / label / f"saturated-{when}", full, **about)
    ended = full.requests["done_s"].dropna()
    return float(((ended > 2.0) & (ended < 32.0)).sum()) / 30.0


def _measure(
    folder: Path,
    experiment: str,
    seats: int,
    load: float,
    capacity: float,
    measure_s: float,
    compare: list[str],
    load_of: str | None = None,
    true: LinearStepTime = TRUTH,
) -> None:
    rate = load * capacity
    slo = {"ttft_ms": 500.0, "tpot_ms": 80.0, "attain": 0.9}
    run = run_plan(draw_plan(rate, measure_s), seats, rate, true, compare=compare, load_of=load_of, slo=slo)
    about = {"study": "known", "experiment": experiment, "point": f"load={load:g}", "replication": 0}
    spec = {**run.meta["spec"], "experiment": experiment}
    write_run(folder / experiment / f"load={load:g}" / "0", run, **about, spec=spec)
