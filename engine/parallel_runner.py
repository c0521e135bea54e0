"""Tensor parallelism from above: one process a rank, and a command channel on which every command is acknowledged.

The engine's own process is no rank: it never waits inside a collective, only for messages, so a rank that dies is noticed
at once and the others are stopped. Ranks find each other through a file in a new directory and talk to the engine through
socket pairs: no port and no segment has a fixed name, and any number of engines fit on one host.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.layers.device_sampler import Drawn, SamplingInput
from engine.model_input import ModelInput
from engine.models.config import ModelConfig
from engine.parallel import check_shares

if TYPE_CHECKING:
    from engine.executors.device import DeviceSettings

Message = tuple[Any, ...]
_GRACE_S = 2.0  # for a rank's end to become visible after another one has felt it


class RankDied(RuntimeError):
    """A rank ended or failed; the others have been stopped. The message has the rank and its exit code or last words."""


class TensorParallelRunner:
    """A ``DeviceRunner`` whose work is shared between ranks.

    Args:
        shape: the model's.
        config: the engine's options; each rank loads its share of ``config.model`` itself.
        settings: of each rank.

    Raises:
        ValueError: the model cannot be shared so, or a rank refused the options.
        RankDied: a rank did not come up.
    """

    def __init__(self, shape: ModelConfig, config: EngineConfig, settings: DeviceSettings) -> None:
        size = config.tensor_parallel_size
        check_shares(shape, size)
        self.config = shape
        self.block_size = settings.block_size
        self.max_model_len = settings.max_model_len
        self._directory = tempfile.mkdtemp(prefix="latency-lab-ranks-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self.close = weakref.finalize(self, _stop, self._processes, self._connections, self._directory)
        for _ in range(size):
            self._start_rank(settings)
        meeting = str(Path(self._directory) / "meeting")
        loaded = self._ask([("load", config.model, config.seed, settings, rank, size, meeting) for rank in range(size)])
        self.num_kv_blocks: int = min(reply[1] for reply in loaded)
        self._ask([("allocate", self.num_kv_blocks)] * size)

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids, in order."""
        return [process.pid for process in self._processes]

    def launch(self, step: ModelInput) -> None:
        self._send([("launch", step)] * len(self._connections))

    def finish(self, options: SamplingInput) -> Drawn:
        drawn: Drawn = self._ask([("finish", options)] * len(self._connections))[0][1]
        return drawn

    def _start_rank(self, settings: DeviceSettings) -> None:
        ours, theirs = socket.socketpair()
        threads = str(settings.num_threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        if settings.device == "cpu":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks share a host
        command = [sys.executable, "-m", "engine.parallel_worker", "--fd", str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        theirs.close()
        self._processes.append(process)
        self._connections.append(Connection(ours.detach()))

    def _ask(self, messages: Sequence[Message]) -> list[Message]:
        """Send each rank its message; the ranks' acknowledgements, in order."""
        self._send(messages)
        replies: dict[int, Message] = {}
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        while pending:
            for connection in wait(list(pending)):
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                try:
                    reply: Message = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    raise self._death(rank, None) from None
                if reply[0] == "refused":
                    self.close()
                    raise ValueError(reply[1])
                if reply[0] == "failed":
                    raise self._death(rank, reply[1])
                replies[rank] = reply
        return [replies[rank] for rank in range(len(messages))]

    def _send(self, messages: Sequence[Message]) -> None:
        if not self.close.alive:
            raise RankDied("the ranks of this engine have been stopped")
        for rank, (connection, message) in enumerate(zip(self._connections, messages, strict=True)):
            try:
                connection.send_bytes(pickle.dumps(message, protocol=5))
            except OSError:
                raise self._death(rank, None) from None

    def _death(self, rank: int, last_words: str | None) -> RankDied:
        """What to raise when ``rank`` is gone or in trouble; stops the rest. A rank that fails because another one died is
        not the one to report."""
        deadline = time.monotonic() + _GRACE_S
        dead: list[tuple[int, int]] = []
        while not dead and time.monotonic() < deadline:
            dead = [(i, process.returncode) for i, process in enumerate(self._processes) if process.poll() is not None]
            time.sleep(0.02)
        killed = [(i, code) for i, code in dead if code < 0] or [(i, code) for i, code in dead if i == rank]
        pids = self.pids
        self.close()
        if killed:
            who, code = killed[0]
            text = f"rank {who} (pid {pids[who]}) ended unexpectedly: exit code {code}"
        else:
            text = f"rank {rank} (pid {pids[rank]}) failed"
        if last_words is not None and (not killed or killed[0][0] == rank):
            text += f"\n{last_words}"
        return RankDied(f"{text}; the other ranks have been stopped")


def _stop(processes: list[subprocess.Popen[bytes]], connections: list[Connection], directory: str) -> None:
    """End the ranks: a closed connection tells each to go; what has not gone after a moment is killed."""
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(directory, ignore_errors=True)
