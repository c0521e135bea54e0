"""The engine beside its peers on a CPU: same weights, prompts and forced lengths, whole processes on the same cores.

    python benchmarks/make_peers.py ENVIRONMENTS                # once: environments and weights of the peers
    python benchmarks/peers.py ENVIRONMENTS [--threads 1] [--rounds 5] [--only ours,vllm] [--cells decode,prefill,offline]

Every engine is a process of its own, pinned to the same cores, started once and stopped (SIGSTOP) while another works.
Peers answer in turns, round after round, so that what the machine does in between hits all alike. Columns:

- ``decode B``: tokens a second while B requests go from 224 to 256 tokens of context, B * 32 / (time for 33 tokens - time
  for 1 token): without the prompt;
- ``prefill``: tokens a second of a prompt of 512 tokens with one new token, end to end;
- ``offline``: new tokens a second of 64 requests at once (prompts 16-512, outputs 16-128), end to end.

The last table gives the engine's rate over each peer's, median of the rounds' own ratios, with their range; and how many of
the first 8 greedy tokens of the decode prompts are those of the engine (rounding may part them later).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

Order = tuple[list[list[int]], list[int]]


@dataclass
class Peer:
    """One resident engine: its process, and its answers by cell and round."""

    name: str
    process: subprocess.Popen[str]
    rates: dict[str, list[float]] = field(default_factory=dict)
    first: list[list[int]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """The next line of the worker.

        Raises:
            RuntimeError: the worker ended; its output says why.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}; see its .log file")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, order: Order) -> tuple[float, list[list[int]]]:
        """Seconds of an order, and the first tokens of each of its requests."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": order[0], "new_tokens": order[1]}) + "\n")
        self.process.stdin.flush()
        found = self.answer()
        return found["seconds"], found["first"]

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The peer runs inside, and is stopped again behind."""
        self.signal(signal.SIGCONT)
        yield
        self.signal(signal.SIGSTOP)


def start(name: str, folder: Path, threads: int, model: str) -> Peer:
    """Start a peer on the first ``threads`` cores, wait until it answers, and stop it."""
    options: dict[str, Any] = {"threads": threads, "seats": SEATS, "budget": BUDGET, "max_len": MAX_LEN}
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if name.startswith("ours"):
        python, script = Path(sys.executable), "ours.py"
        options |= {"model": model, "engine": {"quantization": "int8"} if name == "ours-int8" else {}}
    elif name == "vllm":
        python, script = folder / "vllm/bin/python", "vllm_cpu.py"
        options["folder"] = str(folder / "weights/hf")
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0" if threads == 1 else f"0-{threads - 1}"
        environment["LD_PRELOAD"] = ":".join((folder / "vllm/preload.txt").read_text().split())
    elif name == "transformers":
        python, script = Path(sys.executable), "transformers_generate.py"
        options["folder"] = str(folder / "weights/hf")
    else:
        python, script = folder / "llama/bin/python", "llama_cpp_batch.py"
        options["gguf"] = str(folder / f"weights/{name.removeprefix('llama-')}.gguf")
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
    peer = Peer(name, process)
    peer.versions = peer.answer()["versions"]
    peer.signal(signal.SIGSTOP)
    return peer


def prompts(count: int, lengths: list[int], seed: int) -> list[list[int]]:
    """``count`` prompts of random ordinary tokens, ``lengths[i]`` long."""
    rng = np.random.default_rng(seed)
    return [rng.integers(FIRST_ID, LAST_ID, lengths[i]).tolist() for i in range(count)]


def decode_rate(batch: int, seed: int) -> Callable[[Peer], float]:
    """Tokens a second of decode alone: the difference of a long and a short order."""
    texts = prompts(batch, [CONTEXT] * batch, seed)

    def measure(peer: Peer) -> float:
        short, _ = peer.ask((texts, [1] * batch))
        long, first = peer.ask((texts, [1 + DECODED] * batch))
        if seed == 0:
            peer.first += first
        return batch * DECODED / (long - short)

    return measure


def whole_rate(order: Order, tokens: int) -> Callable[[Peer], float]:
    """``tokens`` over the seconds of the whole order."""
    return lambda peer: tokens / peer.ask(order)[0]


def cells(kinds: list[str], batches: list[int], seed: int) -> Iterator[tuple[str, Callable[[Peer], float]]]:
    """Name and measurement of every column for one round; a new seed gives new prompts."""
    if "decode" in kinds:
        for batch in batches:
            yield f"decode {batch}", decode_rate(batch, seed)
    if "prefill" in kinds:
        yield "prefill", whole_rate((prompts(1, [512], seed), [1]), 512)
    if "offline" in kinds:
        rng = np.random.default_rng(1000 + seed)
        lengths, outputs = rng.integers(16, 513, 64).tolist(), rng.integers(16, 129, 64).tolist()
        yield "offline", whole_rate((prompts(64, lengths, seed), outputs), sum(outputs))


def show(peers: list[Peer], console: Console) -> None:
    """Rates, ratios and agreement, one row a peer."""
    names = list(peers[0].rates)
    rates = Table("tokens/s: median (min-max)", *names, title="Rates")
    for peer in peers:
        rates.add_row(peer.name, *(f"{median(r):.0f} ({min(r):.0f}-{max(r):.0f})" for r in peer.rates.values()))
    ratios = Table("ours over", *names, "first 8 tokens", title="Ratios: median (min-max) of the rounds' own")
    ours = peers[0]
    for peer in peers[1:]:
        rounds = [zip(ours.rates[name], peer.rates[name], strict=True) for name in names]
        found = [[mine / other for mine, other in pairs] for pairs in rounds]
        shown = [f"{median(ratio):.2f} ({min(ratio):.2f}-{max(ratio):.2f})" for ratio in found]
        same = [
            a == b for mine, other in zip(ours.first, peer.first, strict=True) for a, b in zip(mine, other, strict=True)
        ]
        ratios.add_row(peer.name, *shown, f"{sum(same)} of {len(same)}")
    console.print(rates, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path, help="the folder that make_peers.py made")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="ours,vllm,llama-bf16,transformers", help="the first one is 'ours' or 'ours-int8'"
    )
    parser.add_argument("--cells", default="decode,prefill,offline")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--json", type=Path, help="also write every rate of every round here")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    batches = [int(size) for size in options.batches.split(",")]
    peers: list[Peer] = []
    try:
        for name in options.only.split(","):
            console.print(f"starting {name}")
            peers.append(start(name, options.environments, options.threads, options.model))
        for peer in peers:
            with peer.awake():
                peer.ask((prompts(SEATS, [BUDGET // SEATS] * SEATS, 0), [8] * SEATS))  # the largest shapes, untimed
        for turn in range(options.rounds):
            for name, measure in cells(options.cells.split(","), batches, turn):
                for peer in peers if turn % 2 == 0 else peers[::-1]:
                    with peer.awake():
                        peer.rates.setdefault(name, []).append(measure(peer))
            console.print(f"round {turn + 1} of {options.rounds}")
        for peer in peers:
            console.print(peer.name, peer.versions)
        console.print(
            f"{options.threads} thread(s), {options.rounds} rounds; random prompts, seeds 0..{options.rounds - 1}"
        )
        show(peers, console)
        if options.json:
            options.json.write_text(json.dumps({peer.name: peer.rates for peer in peers}, indent=1))
    finally:
        for peer in peers:
            peer.signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
