"""The engine beside its peers on a CPU: same weights, prompts and forced lengths, whole processes on the same cores.

    python benchmarks/make_peers.py ENVIRONMENTS                # once: environments and weights of the peers
    python benchmarks/peers.py ENVIRONMENTS [--threads 1] [--rounds 5] [--only ours,vllm] [--cells decode,prefill,offline]

Every engine is a process of its own, pinned to the same cores, started once and stopped (SIGSTOP) while another works.
Peers answer in turns, round after round, so that what the machine does in between hits all alike. Columns:

- ``decode B``: tokens a second while B requests go from 224 to 256 tokens of context, from the step in which the last of
  them got its first token on: without the prompts;
- ``prefill``: tokens a second of a prompt of 512 tokens with one new token, end to end;
- ``offline``: new tokens a second of 64 requests at once (prompts 16-512, outputs 16-128), end to end.

The last table gives the engine's rate over each peer's of the same precision (``ours-int8`` over ``llama-q8_0``, ``ours``
over the others), median of the rounds' own ratios, with their range; and how many of the first 8 greedy tokens of the
decode prompts are those of the engine (rounding may part them later).

A peer that doesn't start within ``--start-limit`` (vLLM compiles for minutes), or ends, is named and left out from there on.
Tables and ``--json`` hold what was measured, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

WORKERS = Path(__file__).parent / "peer_workers"
BATCHES = (1, 4, 8, 16, 32)
CONTEXT, DECODED = 224, 32
SEATS, BUDGET, MAX_LEN = 32, 2048, 1024
FIRST_ID, LAST_ID = 100, 49_000  # ordinary tokens of SmolLM2

OURS = ("ours", "ours-int8")
PEERS = (*OURS, "vllm", "llama-bf16", "llama-q8_0", "transformers")
INT8 = ("ours-int8", "llama-q8_0")

Order = tuple[list[list[int]], list[int]]


class PeerFailedError(RuntimeError):
    """A peer ended or did not answer in time; the message names it and its log."""


@dataclass
class Peer:
    """One resident engine: its process, and its answers by cell and round."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    rates: dict[str, dict[int, float]] = field(default_factory=dict)
    first: dict[str, list[list[int]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def answer(self, limit_s: float | None = None) -> dict[str, Any]:
        """The next line of the worker.

        Raises:
            PeerFailedError: there is none.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            raise PeerFailedError(f"{self.name} gave no answer within {limit_s:g} s; {self.log} may say why")
        line = self.process.stdout.readline()
        if not line:
            raise PeerFailedError(f"{self.name} ended with code {self.process.wait()}; {self.log} says why")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, order: Order) -> dict[str, Any]:
        """``seconds`` of an order, its ``decode`` rate and the ``first`` tokens of each of its requests."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"prompts": order[0], "new_tokens": order[1]}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says with which code it ended
        return self.answer()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The peer runs inside, and is stopped again behind."""
        self.signal(signal.SIGCONT)
        yield
        self.signal(signal.SIGSTOP)


def start(name: str, folder: Path, threads: int, model: str, limit_s: float) -> Peer:
    """Start a peer on the first ``threads`` cores, wait until it answers, and stop it.

    Raises:
        PeerFailedError: it ended, did not answer within ``limit_s`` seconds, or its environment is not there.
    """
    options: dict[str, Any] = {"threads": threads, "seats": SEATS, "budget": BUDGET, "max_len": MAX_LEN}
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if name.startswith("ours"):
        python, script = Path(sys.executable), "ours.py"
        options |= {"model": model, "engine": {"quantization": "int8"} if name == "ours-int8" else {}}
    elif name == "vllm":
        python, script = folder / "vllm/bin/python", "vllm_cpu.py"
        options["folder"] = str(folder / "weights/hf")
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0" if threads == 1 else f"0-{threads - 1}"
        preload = folder / "vllm/preload.txt"
        if preload.exists():
            environment["LD_PRELOAD"] = ":".join(preload.read_text().split())
    elif name == "transformers":
        python, script = Path(sys.executable), "transformers_generate.py"
        options["folder"] = str(folder / "weights/hf")
    else:
        python, script = folder / "llama/bin/python", "llama_cpp_batch.py"
        options["gguf"] = str(folder / f"weights/{name.removeprefix('llama-')}.gguf")
    if not python.exists():
        raise PeerFailedError(f"{name}: there is no {python}; benchmarks/make_peers.py makes it")
    cores = sorted(os.sched_getaffinity(0))[:threads]
    with open(folder / f"{name}.log", "w") as log:
        process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), str(python), str(WORKERS / script), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    peer = Peer(name, process, folder / f"{name}.log")
    try:
        peer.versions = peer.answer(limit_s)["versions"]
    except BaseException:
        peer.signal(signal.SIGKILL)
        raise
    peer.signal(signal.SIGSTOP)
    return peer


def prompts(count: int, lengths: list[int], seed: int) -> list[list[int]]:
    """``count`` prompts of random ordinary tokens, ``lengths[i]`` long."""
    rng = np.random.default_rng(seed)
    return [rng.integers(FIRST_ID, LAST_ID, lengths[i]).tolist() for i in range(count)]


def decode_rate(name: str, batch: int, seed: int) -> Callable[[Peer], float]:
    """Tokens a second of decode alone."""
    texts = prompts(batch, [CONTEXT] * batch, seed)

    def measure(peer: Peer) -> float:
        found = peer.ask((texts, [1 + DECODED] * batch))
        if seed == 0:
            peer.first[name] = found["first"]
        rate: float = found["decode"]
        return rate

    return measure


def whole_rate(order: Order, tokens: int) -> Callable[[Peer], float]:
    """``tokens`` over the seconds of the whole order."""
    return lambda peer: tokens / float(peer.ask(order)["seconds"])


def cells(kinds: list[str], batches: list[int], seed: int) -> Iterator[tuple[str, Callable[[Peer], float]]]:
    """Name and measurement of every column for one round; a new seed gives new prompts."""
    if "decode" in kinds:
        for batch in batches:
            yield f"decode {batch}", decode_rate(f"decode {batch}", batch, seed)
    if "prefill" in kinds:
        yield "prefill", whole_rate((prompts(1, [512], seed), [1]), 512)
    if "offline" in kinds:
        rng = np.random.default_rng(1000 + seed)
        lengths, outputs = rng.integers(16, 513, 64).tolist(), rng.integers(16, 129, 64).tolist()
        yield "offline", whole_rate((prompts(64, lengths, seed), outputs), sum(outputs))


def show(peers: list[Peer], console: Console) -> None:
    """Rates, ratios and agreement, one row a peer; a dash where nothing was measured."""
    names = list(dict.fromkeys(name for peer in peers for name in peer.rates))
    rates = Table("tokens/s: median (min-max)", *names, title="Rates")
    for peer in peers:
        rates.add_row(peer.name, *(_range(list(peer.rates.get(name, {}).values()), 0) for name in names))
    ratios = Table("ours over", *names, "first 8 tokens", title="Ratios: median (min-max) of the rounds' own")
    by_name = {peer.name: peer for peer in peers}
    for peer in peers:
        ours = by_name.get("ours-int8" if peer.name in INT8 else "ours")
        if ours is None or peer.name in OURS:
            continue
        found = []
        for name in names:
            mine, others = ours.rates.get(name, {}), peer.rates.get(name, {})
            found.append(_range([mine[turn] / others[turn] for turn in mine.keys() & others.keys()], 2))
        same = [
            a == b
            for name in ours.first.keys() & peer.first.keys()
            for mine, other in zip(ours.first[name], peer.first[name], strict=True)
            for a, b in zip(mine, other, strict=True)
        ]
        ratios.add_row(peer.name, *found, f"{sum(same)} of {len(same)}")
    console.print(rates, ratios)


def _range(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def measure_all(peers: list[Peer], options: argparse.Namespace, console: Console) -> None:
    """Every cell of every round; a peer that fails is taken from ``peers`` that are asked, its rates stay."""
    active = list(peers)
    batches = [int(size) for size in options.batches.split(",")]

    def ask(peer: Peer, question: Callable[[Peer], Any]) -> Any:
        try:
            with peer.awake():
                return question(peer)
        except PeerFailedError as error:
            console.print(f"left out from here on: {error}")
            active.remove(peer)
            return None

    largest = (prompts(SEATS, [BUDGET // SEATS] * SEATS, 0), [8] * SEATS)
    for peer in list(active):
        ask(peer, lambda each: each.ask(largest))  # untimed
    for turn in range(options.rounds):
        for name, measure in cells(options.cells.split(","), batches, turn):
            for peer in list(active if turn % 2 == 0 else active[::-1]):
                rate = ask(peer, measure)
                if rate is not None:
                    peer.rates.setdefault(name, {})[turn] = rate
            if options.json:
                options.json.write_text(json.dumps({peer.name: peer.rates for peer in peers}, indent=1))
        console.print(f"round {turn + 1} of {options.rounds}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path, help="the folder that make_peers.py made")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(PEERS), help="which of %(default)s")
    parser.add_argument("--cells", default="decode,prefill,offline")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--start-limit", type=float, default=900.0, help="seconds until a peer must answer")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--json", type=Path, help="also write every rate of every round here, after every cell")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = sorted(set(chosen) - set(PEERS))
    if unknown:
        parser.error(f"no peer {', '.join(unknown)}; peers are {', '.join(PEERS)}")
    console = Console(width=None if sys.stdout.isatty() else 200)
    peers: list[Peer] = []
    try:
        for name in chosen:
            console.print(f"starting {name}")
            try:
                peers.append(start(name, options.environments, options.threads, options.model, options.start_limit))
            except PeerFailedError as error:
                console.print(f"left out: {error}")
        try:
            measure_all(peers, options, console)
        except KeyboardInterrupt:
            console.print("interrupted")
        for peer in peers:
            console.print(peer.name, peer.versions)
        console.print(f"{options.threads} thread(s); random prompts, seeds 0..{options.rounds - 1}")
        show(peers, console)
    finally:
        for peer in peers:
            peer.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
