"""The engine in a process of its own: ``python -m engine.process --fd N`` on one side, ``EngineProcess`` on the other.

One socket carries framed pickles both ways. In the child a receiver thread stamps requests the moment they arrive, also
in mid-step; the main thread steps and sends one message a step. Affinity and thread count are set before anything that
starts OpenMP is imported.
"""

from __future__ import annotations

import argparse
import array
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.outputs import RequestStats
from engine.sampling_params import SamplingParams
from engine.scheduler import RequestRefused
from engine.sequence import Request

if TYPE_CHECKING:
    from engine.core import EngineCore, TokenEvent

Message = tuple[Any, ...]
SWITCH_INTERVAL_S = 5e-4  # how long the receiver may have to wait for the interpreter while the main thread runs Python


class EngineProcessDied(RuntimeError):
    """The engine process ended while it was needed; the message has its exit code and last words."""


class EngineProcess:
    """The client's handle on an engine process. Not thread-safe: one thread sends and polls.

    Events that ``poll`` returns, each a tuple that begins with its kind:

    * ``("step", [(request_id, token_id, finish_reason, stats), ...])``: one message a step; ``finish_reason`` and
      ``stats`` (a ``RequestStats`` tuple) only with the last token, ``token_id`` None for an abort;
    * ``("refused", request_id, reason)``.
    """

    def __init__(self, config: EngineConfig, cores: Sequence[int] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        command = [sys.executable, "-m", "engine.process", "--fd", str(theirs.fileno())]
        environment = {**os.environ, **_thread_limits(config.num_threads or len(cores or os.sched_getaffinity(0)))}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        theirs.close()
        self._events: deque[Message] = deque()
        self._send(("start", config, list(cores) if cores else None))
        self.info: dict[str, Any] = self._reply("ready")[1]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def readable(self) -> Connection:
        """What to select on for new events."""
        return self._connection

    def add_request(self, request: Request) -> None:
        self._send(("request", encode_request(request)))

    def abort(self, request_id: str) -> None:
        self._send(("abort", request_id))

    def poll(self) -> list[Message]:
        """Events that have arrived, without blocking."""
        events = list(self._events)
        self._events.clear()
        while self._connection.poll():
            events.append(self._receive())
        return events

    def next_event(self) -> Message | None:
        """The next event that has arrived, or None."""
        if self._events:
            return self._events.popleft()
        return self._receive() if select.select([self._connection], [], [], 0)[0] else None

    def start_run(self, directory: Path | None, origin_s: float) -> None:
        """Record steps, batch and gauge into ``directory`` from now on; stamps relative to ``origin_s``."""
        self._send(("start_run", None if directory is None else str(directory), origin_s))
        self._reply("run_started")

    def finish_run(self) -> dict[str, Any]:
        """Stop recording and close the files; returns what the recorder counted."""
        self._send(("finish_run",))
        return self._reply("run_finished")[1]

    def clock_offset(self, rounds: int = 9) -> dict[str, float]:
        """Bounds on engine clock minus our clock, in seconds, from the tightest of some round trips."""
        best = (float("-inf"), float("inf"))
        for _ in range(rounds):
            before = time.perf_counter()
            self._send(("clock",))
            there = self._reply("clock")[1]
            after = time.perf_counter()
            if after - before < best[1] - best[0]:
                best = (there - after, there - before)
        return {"low_s": best[0], "high_s": best[1]}

    def close(self) -> None:
        """End the process: politely, then firmly."""
        if self._process.poll() is None:
            try:
                self._send(("shutdown",))
                self._process.wait(timeout=5)
            except (EngineProcessDied, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
        self._connection.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: Message) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, protocol=5))
        except OSError as error:
            raise self._death() from error

    def _receive(self) -> Message:
        try:
            message: Message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error
        if message[0] == "failed":
            raise message[1](message[2]) if message[1] is ValueError else EngineProcessDied(message[2])
        return message

    def _reply(self, kind: str) -> Message:
        """The next message of this kind; events that arrive before it are kept for ``poll``."""
        while True:
            message = self._receive()
            if message[0] == kind:
                return message
            self._events.append(message)

    def _death(self) -> EngineProcessDied:
        try:
            code: object = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = "still running, but closed its connection"
        return EngineProcessDied(f"the engine process (pid {self._process.pid}) ended unexpectedly: exit code {code}")


def _thread_limits(num_threads: int) -> dict[str, str]:
    return {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def encode_request(request: Request) -> Message:
    """A request as a small tuple; prompt ids travel as bytes.

    Raises:
        ValueError: the request asks for what an engine process doesn't serve: log-probabilities, samples, stop strings.
    """
    params = request.params
    for name, value, plain in (("logprobs", params.logprobs, None), ("n", params.n, 1), ("stop", params.stop, ())):
        if value != plain:
            raise ValueError(
                f"request {request.request_id!r} has {name} = {value!r}; an engine process takes only {plain!r}: "
                "use LLM, in the same process"
            )
    return (
        request.request_id,
        array.array("i", request.prompt_token_ids).tobytes(),
        tuple(getattr(params, name) for name in SamplingParams.__slots__),
        request.priority,
        request.predicted_output_tokens,
        request.cache_salt,
    )


def decode_request(message: Message) -> Request:
    """The inverse of ``encode_request``."""
    prompt = array.array("i")
    prompt.frombytes(message[1])
    return Request(message[0], prompt.tolist(), SamplingParams(*message[2]), *message[3:])


class _EngineServer:
    """The child's side: a receiver thread that feeds the core, a loop that steps it."""

    def __init__(self, connection: Connection, core: EngineCore) -> None:
        self.connection = connection
        self.core = core
        self._control: deque[Message] = deque()
        self._sending = threading.Lock()

    def serve(self) -> None:
        receiver = threading.Thread(target=self._receive_loop, name="receiver", daemon=True)
        receiver.start()
        core = self.core
        while True:
            if self._control and not self._handle_control(self._control.popleft()):
                return
            if core.has_work:
                events = core.step()
                if events:
                    self.send(("step", [_encode_event(event) for event in events]))
            elif not self._control:
                core.wait_for_work()

    def send(self, message: Message) -> None:
        data = pickle.dumps(message, protocol=5)
        with self._sending:
            self.connection.send_bytes(data)

    def _receive_loop(self) -> None:
        while True:
            try:
                message = pickle.loads(self.connection.recv_bytes())
            except (EOFError, OSError):  # the client is gone
                message = ("shutdown",)
            kind = message[0]
            if kind == "request":
                self._add(decode_request(message[1]))
            elif kind == "abort":
                self.core.abort(message[1])
            elif kind == "clock":
                self.send(("clock", self.core.clock()))
            else:
                self._control.append(message)
                self.core.wake()
                if kind == "shutdown":
                    return

    def _add(self, request: Request) -> None:
        try:
            self.core.add(request)
        except RequestRefused as refusal:
            self.send(("refused", request.request_id, str(refusal)))

    def _handle_control(self, message: Message) -> bool:
        from engine.recorder import FileRecorder

        if message[0] == "start_run":
            _, directory, origin_s = message
            self.core.scheduler.block_manager.clear_cache()
            self._recorder = FileRecorder(Path(directory), origin_s) if directory else None
            self._counted = self.core.counters()
            self.core.record_to(self._recorder)
            self.send(("run_started",))
        elif message[0] == "finish_run":
            recorder = self._recorder
            self.core.record_to(None)
            counted = {name: value - self._counted[name] for name, value in self.core.counters().items()}
            self.send(("run_finished", {**(recorder.close() if recorder else {}), **counted}))
        return message[0] != "shutdown"


def _encode_event(event: TokenEvent) -> Message:
    seq = event.seq
    if seq.finish_reason is None:
        return (seq.request_id, event.token_id, None, None)
    return (seq.request_id, event.token_id, seq.finish_reason, tuple(RequestStats.of(seq)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the child process."""
    parser = argparse.ArgumentParser(description="An engine process; started by EngineProcess, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the client")
    connection = Connection(parser.parse_args(arguments).fd)
    _, config, cores = pickle.loads(connection.recv_bytes())
    if cores:
        os.sched_setaffinity(0, cores)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        from engine.build import build_core

        core, info = build_core(config)
        server = _EngineServer(connection, core)
        server.send(("ready", {**asdict(info), "pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0))}))
        server.serve()
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(1) from None  # the client is gone; nobody is left to tell
    except BaseException as error:
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        text = str(error) if isinstance(error, ValueError) else traceback.format_exc()
        connection.send_bytes(pickle.dumps(("failed", kind, text)))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
