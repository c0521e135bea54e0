"""Does the load generator keep up, and is what it reports the textbook's queue? All in real time, in one table.

    python -m benchmarks.generator [--parts queues rates traces] [--cells TEXT] [--seconds 60] [--rate 1000] [--keep FILE]

The target is the stub: a known queue inside the generator's own process, so every deviation is the generator's or that of the
machine under it. *queues*: M/M/1, M/D/1 and M/M/3 at rho = .5, .8, .9; the mean wait by the client's stamps (finished -
intended - service) against theory, and against the band in which the means of so many requests, begun empty, lie for all nine
cells together with probability 99.5 % (simulated); beside it what is the instrument's: the same path through an exact queue,
and the delay of sending and of stamping. *rates*: Poisson at 500/s while an engine process saturates the other cores, and at
5,000/s, to a server that takes no time. *traces*: each replayed in ``--seconds``.

With ``--keep`` cells are added to a file and the table shows everything in it: the nine cells take nine minutes and may be
measured a few at a time (``--cells M/D/1``); ``--parts`` with nothing behind it only prints. "off core" is the time that the
generator was ready to run and the system ran something else there, "steal" what the host gave to other guests: where they are
not small, the machine was not the generator's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from benchmarks.known_queues import QUEUES, Queue, Waits, wait_band
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

RATES = {"Poisson 500/s beside a busy engine": (500.0, True), "Poisson 5000/s": (5000.0, False)}
CONFIDENCE = 0.995  # of all cells of the queues together
TRACES = (  # those of public traces that have arrivals
    "AzureLLMInferenceTrace_conv.csv",
    "mooncake_fast25_conversation_trace.jsonl",
    "servegen_deepseek-r1_client_windows.csv",
)
MOST_OF_A_TRACE = 20_000  # rows replayed
PARTS = ("queues", "rates", "traces")


@dataclass(frozen=True)
class Cell:
    """One row of the table. Lags in ms, processor seconds per 1,000 requests (``work``: without waiting).

    ``rate`` is that of Poisson arrivals, requests/s, ``ks`` the distance of the gaps as sent from the exponential law (so
    many gaps see the 30 us that two sends are apart at least); ``waits`` a queue's :class:`Waits`.
    """

    name: str
    offered: int
    sent: int
    offered_per_s: float
    sent_per_s: float
    lag_p50: float
    lag_p99: float
    lag_max: float
    gap_cv: float
    ks_p: float | None
    cpu: float
    work: float
    off_core_percent: float
    rate: float | None = None
    ks: float | None = None
    steal_percent: float = math.nan
    waits: dict[str, float] | None = None

    def row(self) -> str:
        ks, p = ("-" if value is None else f"{value:.3f}" for value in (self.ks, self.ks_p))
        return (
            f"{self.name:36}{self.offered:8d}{self.sent:8d}{self.offered_per_s:10.2f}{self.sent_per_s:10.2f}"
            f"{self.lag_p50:8.3f}{self.lag_p99:8.3f}{self.lag_max:8.2f}{self.gap_cv:7.3f}{ks:>7}{p:>7}{self.cpu:7.3f}"
            f"{self.work:7.3f}{self.off_core_percent:10.2f}{self.steal_percent:8.2f}"
        )


HEAD = (
    f"{'cell':36}{'offered':>8}{'sent':>8}{'offered/s':>10}{'sent/s':>10}{'lag p50':>8}{'p99':>8}{'max ms':>8}{'gapCV':>7}"
    f"{'KS':>7}{'KS p':>7}{'CPU/k':>7}{'work/k':>7}{'off core %':>10}{'steal %':>8}"
)


class TimedStub(StubTarget):
    """Adds up the processor time spent waiting (sleep, then spin): the rest is the generator's work."""

    def __init__(self, service_times: Iterator[float], c: int = 1) -> None:
        super().__init__(service_times, c)
        self.waited_s = 0.0

    def wait(self, until_s: float) -> None:
        began_s = time.process_time()
        super().wait(until_s)
        self.waited_s += time.process_time() - began_s


def off_core_s() -> float:
    """Seconds that this thread was ready to run but had no core (Linux's schedstat); nan where the system doesn't say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return math.nan


def stolen_s() -> float:
    """Seconds since boot that the host took from this thread's core for others (Linux counts in hundredths)."""
    (core, *_) = os.sched_getaffinity(0)
    with open("/proc/stat") as lines:
        fields = next(line.split() for line in lines if line.startswith(f"cpu{core} "))
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def replay(name: str, times: Array, services: Array, queue: Queue | None = None, poisson: float | None = None) -> Cell:
    """Send requests at ``times`` to a stub with these service times (seconds), of ``queue``'s servers (else one).

    ``poisson`` is the rate of Poisson arrivals, whose gaps are then tested as sent.
    """
    target = TimedStub(iter(services.tolist()), 1 if queue is None else queue.c)
    prompt = np.array([1, 2, 3], dtype=np.int32)
    loop = OpenLoop(times, RequestList([prompt] * len(times), [1] * len(times)))
    with tempfile.TemporaryDirectory() as folder:
        began_s, off_s, stolen, wall_s = time.process_time(), off_core_s(), stolen_s(), time.monotonic()
        path = measure(target, loop, Phases(0.0, math.inf), Path(folder) / "run", about={}, record_tokens=False)
        cpu_s, off_s, wall_s = time.process_time() - began_s, off_core_s() - off_s, time.monotonic() - wall_s
        stolen = stolen_s() - stolen
        rows = pq.read_table(path / "requests.parquet").to_pandas()
    rows = rows.iloc[np.argsort(rows["request_id"].astype(int).to_numpy())]
    sent, intended = rows["sent_s"].to_numpy(), rows["intended_s"].to_numpy()
    lag_ms = (sent - intended) * 1e3
    p50, p99 = np.quantile(lag_ms, [0.5, 0.99], method="inverted_cdf")
    gaps = np.diff(np.concatenate([[0.0], sent]))
    test = None if poisson is None else stats.kstest(gaps, "expon", args=(0, 1 / poisson))
    return Cell(
        name=name,
        offered=len(times),
        sent=len(sent),
        offered_per_s=len(times) / float(intended[-1]),
        sent_per_s=len(sent) / float(sent[-1]),
        lag_p50=float(p50),
        lag_p99=float(p99),
        lag_max=float(lag_ms.max()),
        gap_cv=float(gaps.std() / gaps.mean()),
        ks_p=None if test is None else float(test.pvalue),
        cpu=cpu_s / len(times) * 1e3,
        work=(cpu_s - target.waited_s) / len(times) * 1e3,
        off_core_percent=100 * off_s / wall_s,
        rate=poisson,
        steal_percent=100 * stolen / wall_s,
        ks=None if test is None else float(test.statistic),
        waits=None if queue is None else asdict(_waits(queue, services, rows)),
    )


def _waits(queue: Queue, services: Array, rows: pd.DataFrame) -> Waits:
    names = ("intended_s", "received_s", "scheduled_s", "finished_s")
    return Waits.of(queue, services, *(rows[name].to_numpy() for name in names))


def measure_queues(options: argparse.Namespace, seed: int) -> Iterator[Cell]:
    n = round(options.rate * options.seconds)
    for index, queue in enumerate(QUEUES.values()):
        if options.cells in queue.title:
            times = arrival_times({"process": "poisson", "rate": options.rate}, n=n, seed=seed + index)
            services = queue.services(n, np.random.default_rng(np.random.SeedSequence(seed + index, spawn_key=(99,))))
            mean_s = queue.load * queue.c / options.rate
            yield replay(queue.title, times, services * mean_s, queue, options.rate)


def measure_rates(options: argparse.Namespace, seed: int) -> Iterator[Cell]:
    """Poisson arrivals to a server that takes no time."""
    for name, (rate, busy) in RATES.items():
        if options.cells in name:
            times = arrival_times({"process": "poisson", "rate": rate}, n=round(rate * options.seconds), seed=seed)
            with busy_cores(options.cores, busy):
                yield replay(name, times, np.zeros(len(times)), poisson=rate)


def measure_traces(options: argparse.Namespace, seed: int) -> Iterator[Cell]:
    """Every trace with arrivals, its time scaled so that it lasts ``--seconds``; lag p99 should be at most 1 ms."""
    for name in TRACES:
        if options.cells not in name:
            continue
        if not (options.traces / name).is_file():
            print(f"{name}: not in {options.traces}")
            continue
        arrivals = read_trace(options.traces / name, limit=MOST_OF_A_TRACE, seed=seed)["arrival_s"].to_numpy()
        yield replay(name[:35], arrivals * (options.seconds / arrivals[-1]), np.zeros(len(arrivals)))


def print_waits(cells: Sequence[Cell], draws: int) -> None:
    """Mean waits of the queues against theory, and whose share of the difference is whose."""
    print(f"mean waits in ms; band: {100 * CONFIDENCE:g} % for the nine cells together, {draws} simulated runs each")
    head = ("theory", "exact", "by stub", "by client", "sending", "stamping", "band from", "to")
    print(f"{'cell':36}" + "".join(f"{title:>10}" for title in head) + "  inside")
    each = 1 - (1 - CONFIDENCE) / len(QUEUES)
    for number, cell in enumerate(cells):
        assert cell.waits is not None
        assert cell.rate is not None
        queue, waits = QUEUES[cell.name], Waits(**cell.waits)
        ms = queue.load * queue.c / cell.rate * 1e3
        shown = [queue.mean_wait * ms] + [
            seconds * 1e3 for seconds in (waits.exact, waits.stub, waits.claimed, waits.sending, waits.stamping)
        ]
        line = f"{cell.name:36}" + "".join(f"{value:10.4f}" for value in shown)
        if draws:
            low, high = wait_band(queue, cell.offered, draws, each, 1000 + number)
            line += f"{low * ms:10.4f}{high * ms:10.4f}  {'yes' if low * ms <= shown[3] <= high * ms else 'NO'}"
        print(line, flush=True)


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
    """An engine on the cores that are not the generator's, if wanted."""
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


def read_kept(path: Path | None) -> dict[str, Cell]:
    """The cells of earlier goes, by name."""
    if path is None or not path.exists():
        return {}
    return {cell["name"]: Cell(**cell) for cell in json.loads(path.read_text())}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="what is measured")
    parser.add_argument("--cells", default="", metavar="TEXT", help="only cells with this text in their name")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each cell")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second of the queues")
    parser.add_argument("--draws", type=int, default=1000, help="simulated runs for each band; 0: no bands")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="folder of the public traces")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add the cells to this file and print all in it")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    options.cores = Cores.split()  # before the generator is pinned to its own
    parts: dict[str, Callable[[argparse.Namespace, int], Iterator[Cell]]] = {
        "queues": measure_queues,
        "rates": measure_rates,
        "traces": measure_traces,
    }
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"{platform.platform()}, {os.cpu_count()} cores, generator on {options.cores.generator}; {packages}")
    print(f"load average {os.getloadavg()[0]:.2f}; now: {' '.join(options.parts) or 'nothing'} {options.cells}")
    os.sched_setaffinity(0, options.cores.generator)
    cells = read_kept(options.keep)
    for name in options.parts:
        for cell in parts[name](options, options.seed):
            print(cell.row(), flush=True)
            cells[cell.name] = cell
            if options.keep is not None:
                options.keep.write_text(json.dumps([asdict(kept) for kept in cells.values()], indent=1))
    print(f"\n{HEAD}")
    for cell in cells.values():
        print(cell.row())
    queues = [cells[title] for title in QUEUES if title in cells]
    if queues:
        print_waits(queues, options.draws)


if __name__ == "__main__":
    main()
