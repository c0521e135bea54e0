"""What a decode step costs beside the model: everything between one call of the native step and the next.

    python -m benchmarks.overhead [--model M] [--batch 16] [--steps 150] [--repeats 5] [--threads 1]

``--batch`` requests decode together from 224 tokens on. Milliseconds a step, each the median of ``--repeats`` stretches of
``--steps`` / ``--repeats`` steps with the smallest and largest stretch, on the first ``--threads`` cores:

- inline: ``LLM.step`` in a loop, text and outputs made for every token;
- process: an engine process as a study starts it, with its recorder on; the client reads on the last core.

Greedy, and drawn at temperature 0.8 with top-p 0.95. *beside* is the step less the native call, and its share of the step
is what is asked to stay under 5 %. Its parts: ``schedule``, ``input`` (flat arrays), ``sample``, ``update`` (tokens booked),
``outputs`` (inline: text), ``record`` and ``send`` (process), ``rest``.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from engine import LLM, SamplingParams, process
from engine.config import EngineConfig
from engine.executors import model as model_executor
from engine.native import NativeRunner
from engine.recorder import FileRecorder
from engine.scheduler import Scheduler
from engine.sequence import Request

CONTEXT = 224
PARTS = ("schedule", "input", "sample", "update", "outputs", "record", "send", "rest")
SAMPLING: dict[str, dict[str, float]] = {"greedy": {"temperature": 0.0}, "drawn": {"temperature": 0.8, "top_p": 0.95}}
Step = dict[str, float]


class Stopwatch:
    """Times functions of the engine by standing in their place; a step lasts from one native call to the next.

    Attributes:
        steps: seconds of every step between two native calls of ``batch`` rows: ``step``, ``native`` and the parts.
    """

    def __init__(self, batch: int) -> None:
        self.steps: list[Step] = []
        self._batch = batch
        self._spent: Counter[str] = Counter()
        self._begun: float | None = None  # of the running step, if it has `batch` rows
        self._wrap(Scheduler, "schedule", "schedule")
        self._wrap(Scheduler, "update", "update")
        self._wrap(model_executor, "build_model_input", "input")
        self._wrap(model_executor.ModelExecutor, "_choose", "sample")
        self._wrap(LLM, "_output", "outputs")
        self._wrap(FileRecorder, "record_step", "record")
        self._wrap(process._EngineServer, "send", "send")
        self._wrap(NativeRunner, "forward", "native", self._cut)

    def _wrap(self, owner: Any, name: str, part: str, before: Callable[[float, Any], None] | None = None) -> None:
        original = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            if before:
                before(start, arguments[-1])
            try:
                return original(*arguments)
            finally:
                self._spent[part] += time.perf_counter() - start

        setattr(owner, name, timed)

    def _cut(self, now: float, model_input: Any) -> None:
        if self._begun is not None:
            step = {"step": now - self._begun, **{part: self._spent[part] for part in ("native", *PARTS[:-1])}}
            self.steps.append(step | {"rest": step["step"] - sum(self._spent.values())})
        self._spent.clear()
        is_decode = len(model_input.token_ids) == len(model_input.context_lens) == self._batch
        self._begun = now if is_decode else None


def requests(batch: int, steps: int, sampling: dict[str, float]) -> list[Request]:
    """As many requests that decode together for ``steps`` steps."""
    rng = np.random.default_rng(0)
    params = SamplingParams(**sampling, max_tokens=steps + batch, ignore_eos=True, seed=1)  # type: ignore[arg-type]
    return [Request(f"request {i}", rng.integers(100, 49_000, CONTEXT).tolist(), params) for i in range(batch)]


def inline(config: EngineConfig, batch: int, steps: int, sampling: dict[str, float]) -> list[Step]:
    """Steps of an ``LLM`` in this process."""
    watch = Stopwatch(batch)
    llm = LLM(**asdict(config))
    for request in requests(batch, steps, sampling):
        llm.add_request(request.prompt_token_ids, request.params)
    while not llm.is_finished():
        llm.step()
    return watch.steps


def serve(fd: int, batch: int) -> list[Step]:
    """Steps of the engine process that this process is, until its client ends it."""
    watch = Stopwatch(batch)
    process.main(["--fd", str(fd)])
    return watch.steps


def drive(connection: Connection, config: EngineConfig, batch: int, steps: int, sampling: dict[str, float]) -> None:
    """Be the client of an engine process for one run, which is recorded."""

    def send(*message: Any) -> None:
        connection.send_bytes(pickle.dumps(message, protocol=5))

    def receive(kind: str) -> Any:
        while (message := pickle.loads(connection.recv_bytes()))[0] != kind:
            pass
        return message

    send("start", config, sorted(os.sched_getaffinity(0))[: config.num_threads])
    receive("ready")
    with tempfile.TemporaryDirectory() as folder:
        send("start_run", folder, 0.0)
        for request in requests(batch, steps, sampling):
            send("request", process.encode_request(request))
        left = batch
        while left:
            left -= sum(event[2] is not None for event in receive("step")[1])
        send("finish_run")
        receive("run_finished")
    send("shutdown")


def measure(kind: str, sampling: str, options: argparse.Namespace) -> list[Step]:
    """Steps of one engine, in a fresh process."""
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs = socket.socketpair()
    arguments = [kind, sampling, *map(str, (options.model, options.batch, options.steps, options.threads))]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overhead", "--child", str(theirs.fileno()), *arguments],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(child.pid, cores[: options.threads])
    os.sched_setaffinity(0, cores[-1:])
    theirs.close()
    connection = Connection(ours.detach())
    if kind == "process":
        drive(connection, _config(options), options.batch, options.steps, SAMPLING[sampling])
    printed, _ = child.communicate()
    os.sched_setaffinity(0, cores)
    if child.returncode:
        raise SystemExit(f"the measured process ended with code {child.returncode}")
    found: list[Step] = json.loads(printed.splitlines()[-1])
    return found


def _config(options: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=options.model, num_threads=options.threads, max_num_seqs=options.batch, max_model_len=2048
    )


def show(name: str, steps: list[Step], repeats: int) -> None:
    """Medians of the stretches: their median, minimum and maximum in milliseconds, and the share of the step."""
    stretches = np.array_split(np.array([[step[key] for key in ("step", "native", *PARTS)] for step in steps]), repeats)
    medians = np.array([np.median(np.column_stack([s, s[:, 0] - s[:, 1]]), axis=0) for s in stretches]) * 1e3
    print(f"{name}, {len(steps)} steps")
    labels = ("step", "native", *(f"  {part}" for part in PARTS), "beside")
    order = [0, 1, len(labels) - 1, *range(2, len(labels) - 1)]
    for i in order:
        share = np.median(medians[:, i] / medians[:, 0])
        values = medians[:, i]
        print(f"  {labels[i]:<12}{np.median(values):9.3f} ms ({values.min():.3f}-{values.max():.3f}){share:8.2%}")


def child(fd: str, kind: str, sampling: str, model: str, batch: str, steps: str, threads: str) -> None:
    """What the measured process does: its last line on standard output is the steps as JSON."""
    if kind == "process":
        found = serve(int(fd), int(batch))
    else:
        options = argparse.Namespace(model=model, batch=int(batch), threads=int(threads))
        found = inline(_config(options), int(batch), int(steps), SAMPLING[sampling])
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"{options.model}, {options.batch} requests from {CONTEXT} tokens on, {options.threads} thread(s)")
    for kind in ("inline", "process"):
        for sampling in SAMPLING:
            show(f"{kind}, {sampling}", measure(kind, sampling, options), options.repeats)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
