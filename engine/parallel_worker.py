"""A rank of a tensor-parallel engine: ``python -m engine.parallel_worker --fd N``, started by ``TensorParallelRunner``.

Takes commands in order and acknowledges each. Ends when its engine closes the connection or dies.
"""

from __future__ import annotations

import argparse
import os
import pickle
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from engine.executors.device import DeviceSettings, LocalRunner, load_runner, start_runner
from engine.model_runner import ModelRunner
from engine.parallel import TensorParallel
from engine.weights.checkpoint import load_checkpoint

Message = tuple[Any, ...]


def serve(connection: Connection) -> None:
    """Answer commands until the connection closes."""
    settings: DeviceSettings | None = None
    model: ModelRunner | None = None
    runner: LocalRunner | None = None
    while True:
        try:
            message: Message = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        kind, *values = message
        reply: Message | None = None
        if kind == "load":
            name, seed, settings, rank, size, meeting = values
            parallel = _join(settings.device, rank, size, meeting)
            checkpoint = load_checkpoint(name, seed, settings.device)
            model, blocks = load_runner(checkpoint, settings, parallel)
            reply = ("loaded", blocks)
        elif kind == "allocate":
            assert model is not None
            assert settings is not None
            start_runner(model, settings, values[0])
            runner = LocalRunner(model)
            reply = ("ready",)
        elif kind == "launch":
            assert runner is not None
            runner.launch(values[0])
        elif kind == "finish":
            assert runner is not None
            drawn = runner.finish(values[0])
            reply = ("drawn", drawn) if runner.runner.parallel.rank == 0 else ("done",)
        if reply is not None:
            _send(connection, reply)


def _join(device: str, rank: int, size: int, meeting: str) -> TensorParallel:
    """Meet the other ranks at the file ``meeting``."""
    if device == "cuda":
        torch.cuda.set_device(rank)
        own = torch.device("cuda", rank)
        dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=size, device_id=own)
    else:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    return TensorParallel(rank, size)


def _send(connection: Connection, message: Message) -> None:
    connection.send_bytes(pickle.dumps(message, protocol=5))


def _end_with_parent(parent: int) -> None:
    """A rank that waits for another one inside a collective does not see that its engine is gone: watch for it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of a rank's process."""
    parser = argparse.ArgumentParser(description="A rank; started by the engine, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the engine")
    connection = Connection(parser.parse_args(arguments).fd)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        serve(connection)
    except BaseException as error:
        refusal = isinstance(error, ValueError)
        words = ("refused", str(error)) if refusal else ("failed", traceback.format_exc())
        with suppress(OSError):  # the engine is gone: nobody is left to tell
            _send(connection, words)
        os._exit(1)  # not through destructors that would wait for the other ranks
    os._exit(0)


if __name__ == "__main__":
    main()
