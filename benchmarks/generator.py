"""Does the load generator keep up, and is what it reports the textbook's queue? All in real time, in one table.

    python -m benchmarks.generator [--seconds 60] [--rate 1000] [--traces FOLDER] [--busy] [--repeats 1] [--only PART]

The target is the stub: a known queue inside the generator's own process, so every deviation is the generator's.
*queues*: M/M/1, M/D/1 and M/M/3 at rho = .5, .8, .9; the mean wait by the client's stamps (finished - intended - service)
against theory, and against the band in which the means of so many requests, begun empty, lie for all nine cells together with
probability 99.5 % (simulated). *rates*: Poisson at 500/s and 5,000/s to a server that takes no time. *traces*: each replayed
in ``--seconds``. ``--busy`` saturates the other cores with an emulated engine in a process of its own meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from analysis.queues import MD1, MM1, MMc
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from workload.arrivals import arrival_times
from workload.facts import versions
from workload.loops import OpenLoop, RequestList
from workload.measure import measure
from workload.phases import Phases
from workload.runner import Cores
from workload.targets.process import ProcessTarget
from workload.targets.stub import StubTarget
from workload.traces import read_trace

Array = NDArray[np.float64]

LOADS = (0.5, 0.8, 0.9)
RATES = (500.0, 5000.0)
CONFIDENCE = 0.995  # of all cells of the queues together
TRACES = (  # those of public traces that have arrivals
    "AzureLLMInferenceTrace_conv.csv",
    "mooncake_fast25_conversation_trace.jsonl",
    "servegen_deepseek-r1_client_windows.csv",
)
MOST_OF_A_TRACE = 20_000  # rows replayed


@dataclass(frozen=True)
class Queue:
    """One cell: Poisson arrivals, ``c`` servers, exponential or fixed service times, mean service time 1."""

    name: str
    c: int
    exponential: bool
    load: float

    def services(self, n: int, rng: np.random.Generator) -> Array:
        return rng.exponential(size=n) if self.exponential else np.ones(n)

    @property
    def mean_wait(self) -> float:
        """In steady state, in mean service times."""
        if not self.exponential:
            return float(MD1(self.load, 1.0).Wq)
        return float(MM1(self.load, 1.0).Wq if self.c == 1 else MMc(self.load * self.c, 1.0, self.c).Wq)


QUEUES = [
    Queue(name, c, exponential, load)
    for name, c, exponential in (("M/M/1", 1, True), ("M/D/1", 1, False), ("M/M/3", 3, True))
    for load in LOADS
]


class TimedStub(StubTarget):
    """Adds up the processor time spent waiting (sleep, then spin): the rest is the generator's work."""

    def __init__(self, service_times: Iterator[float], c: int = 1) -> None:
        super().__init__(service_times, c)
        self.waited_s = 0.0

    def wait(self, until_s: float) -> None:
        began_s = time.process_time()
        super().wait(until_s)
        self.waited_s += time.process_time() - began_s


@dataclass(frozen=True)
class Replay:
    """What became of one timeline: stamps in seconds in order of arrival, processor seconds per 1,000 requests."""

    intended: Array
    sent: Array
    finished: Array
    offered: int
    cpu_s: float
    work_s: float

    def columns(self, *, poisson: float | None) -> str:
        """Rates, lag and (for Poisson arrivals of that rate) the gaps, as a part of a row."""
        lag_ms = (self.sent - self.intended) * 1e3
        p50, p99 = np.quantile(lag_ms, [0.5, 0.99], method="inverted_cdf")
        gaps = np.diff(np.concatenate([[0.0], self.sent]))
        cv = f"{gaps.std() / gaps.mean():7.3f}"
        ks = "      -" if poisson is None else f"{stats.kstest(gaps, 'expon', args=(0, 1 / poisson)).pvalue:7.3f}"
        return (
            f"{self.offered:8d}{len(self.sent):8d}{self.offered / self.intended[-1]:10.2f}"
            f"{len(self.sent) / self.sent[-1]:10.2f}{p50:8.3f}{p99:8.3f}{lag_ms.max():8.3f}{cv}{ks}"
            f"{self.cpu_s:8.3f}{self.work_s:8.3f}"
        )


HEAD = (
    f"{'cell':34}{'offered':>8}{'sent':>8}{'offered/s':>10}{'sent/s':>10}{'lag p50':>8}{'p99':>8}{'max ms':>8}{'gapCV':>7}"
    f"{'KS p':>7}{'CPU/k':>8}{'work/k':>8}"
)


def replay(times: Array, services: Array, c: int = 1) -> Replay:
    """Send requests at ``times`` to a stub of ``c`` servers with these service times (seconds)."""
    target = TimedStub(iter(services.tolist()), c)
    prompt = np.array([1, 2, 3], dtype=np.int32)
    loop = OpenLoop(times, RequestList([prompt] * len(times), [1] * len(times)))
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.process_time()
        path = measure(target, loop, Phases(0.0, math.inf), Path(folder) / "run", about={}, record_tokens=False)
        cpu_s = time.process_time() - began_s
        rows = pq.read_table(path / "requests.parquet").to_pandas()
    number = rows["request_id"].astype(int).to_numpy()
    rows = rows.iloc[np.argsort(number)]
    intended, sent, finished = (rows[f"{name}_s"].to_numpy() for name in ("intended", "sent", "finished"))
    thousands = len(times) / 1e3
    work_s = cpu_s - target.waited_s
    return Replay(intended, sent, finished, len(times), cpu_s / thousands, work_s / thousands)


def wait_band(queue: Queue, n: int, draws: int, confidence: float, seed: int) -> tuple[float, float]:
    """Where the mean wait of ``n`` requests, begun empty, lies with probability ``confidence``; in mean service times.

    ``draws`` runs at once by the Kiefer-Wolfowitz recursion; the logarithms of their means are nearly normal, and the band is
    that of the normal law.
    """
    rng = np.random.default_rng(seed)
    free_in = np.zeros((draws, queue.c))  # work left on each server, least first
    total = np.zeros(draws)
    for begin in range(0, n, 200):
        count = min(200, n - begin)
        gaps = rng.exponential(1 / (queue.load * queue.c), (count, draws))
        services = rng.exponential(size=(count, draws)) if queue.exponential else np.ones((count, draws))
        for gap, service in zip(gaps, services, strict=True):
            total += free_in[:, 0]
            free_in[:, 0] += service
            if queue.c > 1:
                free_in.sort(axis=1)
            free_in -= gap[:, None]
            np.maximum(free_in, 0.0, out=free_in)
    logs = np.log(total / n)
    reach = stats.norm.ppf(0.5 + confidence / 2) * logs.std(ddof=1)
    return float(np.exp(logs.mean() - reach)), float(np.exp(logs.mean() + reach))


def run_queues(rate: float, seconds: float, draws: int, seed: int) -> None:
    """The nine cells, all measured before their bands are simulated."""
    n = round(rate * seconds)
    measured = []
    print(
        f"queues: {n} requests at {rate:g}/s each; CPU/k is processor seconds per 1,000 requests, work/k without waiting"
    )
    print(HEAD)
    for index, queue in enumerate(QUEUES):
        times = arrival_times({"process": "poisson", "rate": rate}, n=n, seed=seed + index)
        mean_s = queue.load * queue.c / rate
        services = queue.services(n, np.random.default_rng(np.random.SeedSequence(seed + index, spawn_key=(99,))))
        done = replay(times, services * mean_s, queue.c)
        waits = done.finished - done.intended - services * mean_s
        measured.append(float(waits.mean()) / mean_s)
        print(f"{queue.name + f', rho {queue.load}':34}{done.columns(poisson=rate)}", flush=True)
    each = 1 - (1 - CONFIDENCE) / len(QUEUES)
    print(f"mean waits in ms; band: {100 * CONFIDENCE:g} % for the nine together, {draws} draws each")
    print(f"{'cell':34}{'theory':>10}{'measured':>10}{'band from':>11}{'to':>10}  inside")
    for index, (queue, wait) in enumerate(zip(QUEUES, measured, strict=True)):
        low, high = wait_band(queue, n, draws, each, seed + 1000 + index)
        ms = queue.load * queue.c / rate * 1e3
        inside = "yes" if low <= wait <= high else "NO"
        print(
            f"{queue.name + f', rho {queue.load}':34}{queue.mean_wait * ms:10.4f}{wait * ms:10.4f}{low * ms:11.4f}"
            f"{high * ms:10.4f}  {inside}",
            flush=True,
        )


def run_rates(seconds: float, seed: int) -> None:
    """Poisson arrivals to a server that takes no time."""
    print("rates")
    print(HEAD)
    for rate in RATES:
        times = arrival_times({"process": "poisson", "rate": rate}, n=round(rate * seconds), seed=seed)
        done = replay(times, np.zeros(len(times)))
        print(f"{f'Poisson {rate:g}/s':34}{done.columns(poisson=rate)}", flush=True)


def run_traces(folder: Path, seconds: float) -> None:
    """Every trace with arrivals, its time scaled so that it lasts ``seconds``; lag p99 should be at most 1 ms."""
    print(f"traces: the first {MOST_OF_A_TRACE} rows at most, in {seconds:g} s")
    print(HEAD)
    for name in TRACES:
        if not (folder / name).is_file():
            print(f"{name[:33]:34} not in {folder}")
            continue
        arrivals = read_trace(folder / name, limit=MOST_OF_A_TRACE)["arrival_s"].to_numpy()
        times = arrivals * (seconds / arrivals[-1])
        print(f"{name[:33]:34}{replay(times, np.zeros(len(times))).columns(poisson=None)}", flush=True)


def keep_busy(cores: tuple[int, ...], ready: Event) -> None:
    """Run an emulated engine under a permanent backlog on ``cores`` until this process is ended."""
    os.sched_setaffinity(0, cores)
    config = EngineConfig.from_options(
        model="random:tiny-llama", executor="emulated", step_time={"base_s": 0.005}, max_num_seqs=8
    )
    target = ProcessTarget(config, cores)
    target.start_run(None, target.now())
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    numbers = itertools.count()

    def submit() -> None:
        target.submit(Request(str(next(numbers)), [1, 2, 3], params))

    for _ in range(16):
        submit()
    ready.set()
    while True:
        target.wait(target.now() + 60.0)
        for event in target.next_events():
            if event.finish_reason is not None:
                submit()


@contextmanager
def busy_cores(cores: Cores, wanted: bool) -> Iterator[None]:
    """This process on the generator's core, an engine on the others if wanted."""
    os.sched_setaffinity(0, cores.generator)
    if not wanted:
        yield
        return
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=keep_busy, args=(cores.engine, ready))
    process.start()
    try:
        if not ready.wait(120):
            raise RuntimeError("the engine that should keep the other core busy did not start within 120 s")
        yield
    finally:
        process.terminate()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each cell")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second of the queues")
    parser.add_argument("--draws", type=int, default=1000, help="simulated runs for each band")
    parser.add_argument("--repeats", type=int, default=1, help="of everything, with other seeds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="folder of the public traces")
    parser.add_argument("--busy", action="store_true", help="saturate the other cores with an engine process")
    parser.add_argument("--only", choices=("queues", "rates", "traces"))
    options = parser.parse_args()
    cores = Cores.split()
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"{platform.platform()}, {os.cpu_count()} cores, generator on {cores.generator}; {packages}")
    print(f"load average {os.getloadavg()[0]:.2f}; {options.repeats} repeats; other cores busy: {options.busy}")
    parts: dict[str, Callable[[int], None]] = {
        "queues": lambda seed: run_queues(options.rate, options.seconds, options.draws, seed),
        "rates": lambda seed: run_rates(options.seconds, seed),
        "traces": lambda seed: run_traces(options.traces, options.seconds),
    }
    with busy_cores(cores, options.busy):
        for repeat in range(options.repeats):
            for name, part in parts.items():
                if options.only in (None, name):
                    part(options.seed + 100 * repeat)


if __name__ == "__main__":
    main()
