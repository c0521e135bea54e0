"""How fast virtual time is: the engine's core against real time, textbook queues against bare simpy and against Ciw.

Targets: 100 times real time on the default study's loads, 8,000 steps a second with 16 running, ``simulate_queue`` at most
1.2 times what bare simpy takes. Times are CPU times of the one thread.

    python -m benchmarks.simulation [--repeats 5] [--jobs 20000]

Ciw (``pip install ciw``, the extra ``oracle``) is compared where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import simpy

from analysis.simulation import Servers, simulate_engine, simulate_queue
from analysis.simulation.facts import EngineFacts
from analysis.simulation.mix import RequestMix, simulated_capacity
from analysis.simulation.recursions import kiefer_wolfowitz
from engine.config import EngineConfig
from engine.executors.step_time import LinearStepTime

SEATS = 16
LOADS = (0.3, 0.55, 0.8)  # of the default study
STEP = LinearStepTime(
    base_s=0.02, decode_seqs=0.0018, prefill_tokens=0.0021, kv_tokens=4e-6
)  # about this project's engine
SERVERS, RATE, SERVICE_RATE = 3, 2.4, 1.0  # M/M/3 at rho = .8


def cpu_seconds(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.4g} (of {len(values)}: {min(values):,.4g} to {max(values):,.4g})"


def engine_lines(repeats: int) -> list[str]:
    """Times real time at each load, and steps a second under backlog."""
    rng = np.random.default_rng(1)
    prompts = np.clip(rng.lognormal(2.5, 0.7, 4000), 4, 96).astype(np.int64)
    mix = RequestMix(prompts, np.minimum(rng.geometric(0.1, 4000), 48).astype(np.int64))
    options = EngineConfig(
        max_num_seqs=SEATS, max_num_batched_tokens=128, num_kv_blocks=4096, block_size=16, max_model_len=4096
    )
    facts = EngineFacts.of(options)
    capacity = simulated_capacity(mix, STEP, facts)
    lines = []
    for load in LOADS:
        ratios = []
        for seed in range(repeats):
            offered = mix.open_loop(load * capacity, 1000, 0, seed)
            began = time.process_time()
            run = simulate_engine(offered, STEP, facts)
            ratios.append(run.meta["window"]["end_s"] / (time.process_time() - began))
        lines.append(f"load {load:<4} times real time      {spread(ratios)}   target 100")
    rates = []
    for seed in range(repeats):
        offered = mix.backlog(SEATS, 300.0, 1.0, seed)
        began = time.process_time()
        run = simulate_engine(offered, STEP, facts, cooldown_limit_s=0.0)
        rates.append(len(run.steps) / (time.process_time() - began))
    running = float(run.steps["running"].mean())
    return [*lines, f"steps a second, {running:.1f} running  {spread(rates)}   target 8,000"]


def bare_simpy(times: Sequence[float], services: Sequence[float]) -> list[float]:
    """M/M/3 with nothing around it: a resource and a process a job; sojourns."""
    env = simpy.Environment()
    desk = simpy.Resource(env, SERVERS)
    sojourns: list[float] = []

    def job(at: float, seconds: float):  # type: ignore[no-untyped-def]
        yield env.timeout(at - env.now)
        with desk.request() as turn:
            yield turn
            yield env.timeout(seconds)
        sojourns.append(env.now - at)

    def source():  # type: ignore[no-untyped-def]
        for at, seconds in zip(times, services, strict=True):
            env.process(job(at, seconds))
            yield env.timeout(0)

    env.process(source())
    env.run()
    return sojourns


def ciw_run(jobs: int, seed: int) -> None:
    """The same M/M/3 in Ciw, which draws its own times."""
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=RATE)],
        service_distributions=[ciw.dists.Exponential(rate=SERVICE_RATE)],
        number_of_servers=[SERVERS],
    )
    ciw.seed(seed)
    ciw.Simulation(network).simulate_until_max_customers(jobs, method="Finish")


def queue_lines(jobs: int, repeats: int) -> list[str]:
    """Microseconds a job of each, and the ratio to bare simpy in the same repeat."""
    names = ["bare simpy", "simulate_queue", "Kiefer-Wolfowitz"]
    names += ["Ciw"] if importlib.util.find_spec("ciw") else []
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        times = np.cumsum(rng.exponential(1 / RATE, jobs))
        services = rng.exponential(1 / SERVICE_RATE, jobs)
        listed, asked = times.tolist(), services.tolist()
        seconds["bare simpy"].append(cpu_seconds(lambda a=listed, s=asked: bare_simpy(a, s)))  # type: ignore[misc]
        seconds["simulate_queue"].append(
            cpu_seconds(lambda a=times, s=services: simulate_queue(a, s, Servers(SERVERS)))  # type: ignore[misc]
        )
        seconds["Kiefer-Wolfowitz"].append(
            cpu_seconds(lambda a=times, s=services: kiefer_wolfowitz(a, s, SERVERS))  # type: ignore[misc]
        )
        if "Ciw" in seconds:
            seconds["Ciw"].append(cpu_seconds(lambda n=jobs, k=seed: ciw_run(n, k)))  # type: ignore[misc]
    bare = seconds["bare simpy"]
    lines = []
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, bare, strict=True)]
        target = "   target 1.2" if name == "simulate_queue" else ""
        micro = [1e6 * value / jobs for value in values]
        lines.append(f"{name:<17} us a job {spread(micro)}   times bare simpy {spread(ratios)}{target}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args(arguments)
    print(f"python {platform.python_version()}, simpy {simpy.__version__}, numpy {np.__version__}; medians, CPU time")
    print("\n".join(engine_lines(options.repeats)))
    print(f"M/M/{SERVERS}, {options.jobs} jobs")
    print("\n".join(queue_lines(options.jobs, options.repeats)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
