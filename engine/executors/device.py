"""The executor for a GPU and for several ranks: launches a step, prepares the draws while it runs, samples where the logits
are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backends import backend_class, check_device, choose_backend, missing_packages
from engine.config import EngineConfig
from engine.executors.base import ScheduledBatch
from engine.executors.model import ModelExecutor, max_model_len, num_kv_blocks
from engine.kv_sizing import fitting_kv_blocks
from engine.layers.device_logits import Adjustments
from engine.layers.device_sampler import Drawn, SamplingInput, draw
from engine.model_input import ModelInput, build_model_input
from engine.model_runner import ModelRunner, cache_bytes_per_block
from engine.models.config import ModelConfig
from engine.parallel import WHOLE, TensorParallel
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.weights.checkpoint import Checkpoint
from engine.weights.fetch import say

_NO_TOKENS = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class DeviceSettings:
    """What of the engine's options a rank needs, with every ``auto`` resolved.

    ``num_kv_blocks`` None: as many as fit. The rest as in ``EngineConfig`` and ``ModelRunner``.
    """

    device: str
    dtype: str
    attention: str
    operators: str
    block_size: int
    max_model_len: int
    num_kv_blocks: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    enforce_eager: bool
    num_threads: int


class DeviceRunner(Protocol):
    """A model with its cache, computed in two halves, between which the host is free."""

    config: ModelConfig
    block_size: int
    num_kv_blocks: int
    max_model_len: int

    def launch(self, step: ModelInput) -> None:
        """Start the step."""
        ...

    def finish(self, options: SamplingInput) -> Drawn:
        """Wait for it: a token for each of its R logit rows, and what else ``options`` wants."""
        ...


class LocalRunner:
    """A ``ModelRunner`` in this process as a ``DeviceRunner``."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.config = runner.config
        self.block_size = runner.block_size
        self.num_kv_blocks = runner.num_kv_blocks
        self.max_model_len = runner.max_model_len
        self._logits = torch.empty(0)

    def launch(self, step: ModelInput) -> None:
        self._logits = self.runner.logits(step)

    def finish(self, options: SamplingInput) -> Drawn:
        if len(self._logits):
            return draw(self._logits, options)
        if self._logits.is_cuda:
            torch.cuda.synchronize(self._logits.device)  # the step's duration is that of its work
        return Drawn.nothing()


class TokenHistories:
    """The tokens of requests whose logits depend on them, as arrays that grow: a step converts only what is new."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.int32]] = {}
        self._lengths: dict[str, int] = {}

    def of(self, seq: Sequence) -> NDArray[np.int32]:
        """int32 [``seq.num_tokens``], good until the next call for this request."""
        name, length = seq.request_id, seq.num_tokens
        array, known = self._arrays.get(name, _NO_TOKENS), self._lengths.get(name, 0)
        if length > len(array):
            array = np.concatenate((array[:known], np.empty(2 * length - known, dtype=np.int32)))
        array[known:length] = seq.token_ids[known:]
        self._arrays[name], self._lengths[name] = array, length
        return array[:length]

    def forget(self, request_id: str) -> None:
        self._arrays.pop(request_id, None)
        self._lengths.pop(request_id, None)


class DeviceExecutor(ModelExecutor):
    """As ``ModelExecutor``, with the draws on the device."""

    runner: DeviceRunner  # type: ignore[assignment]

    def __init__(self, runner: DeviceRunner, seed: int = 0) -> None:
        super().__init__(runner, seed)  # type: ignore[arg-type]
        self._histories = TokenHistories()

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        started = time.perf_counter()
        self.runner.launch(build_model_input(batch, self.block_size))
        seqs = [seq for seq, needs in zip(batch.seqs, batch.needs_token, strict=True) if needs]
        options = SamplingInput.of([seq.params for seq in seqs], *self.streams(seqs), self._adjustments(seqs))
        drawn = self.runner.finish(options)
        chosen: list[int] = drawn.tokens.tolist()
        if chosen and min(chosen) < 0:
            raise FloatingPointError(f"logits of row {chosen.index(-1)} have NaN or +inf, or bar every token")
        for row, ids, logs in zip(options.logprob_rows, drawn.logprob_ids, drawn.logprobs, strict=True):
            seq = seqs[row]
            entries = 1 + (seq.params.logprobs or 0)
            # A slice, not an append: a step that was abandoned after this point is computed again.
            found = dict(zip(ids[:entries].tolist(), logs[:entries].tolist(), strict=True))
            seq.logprobs[seq.num_output_tokens :] = [found]
        return chosen, time.perf_counter() - started

    def forget(self, request_id: str) -> None:
        self._histories.forget(request_id)

    def _adjustments(self, seqs: list[Sequence]) -> Adjustments | None:
        """Penalties and barred ids of the rows of ``seqs``; ``None`` where there are none."""
        if not any(seq.params.has_penalties or seq.params.min_tokens for seq in seqs):
            return None
        return Adjustments.of(
            [seq.params for seq in seqs],
            [self._histories.of(seq) if seq.params.has_penalties else _NO_TOKENS for seq in seqs],
            [seq.num_output_tokens for seq in seqs],
            [seq.eos_token_ids for seq in seqs],
            self.runner.config.vocab_size,
        )


def resolve_settings(checkpoint: Checkpoint, config: EngineConfig, device: str, threads: int) -> DeviceSettings:
    """The settings of each rank on ``device`` (cpu or cuda).

    Raises:
        ValueError: options that do not fit the model, the device or each other.
    """
    shape, on_gpu = checkpoint.config, device == "cuda"
    dtype = ("bfloat16" if on_gpu else "float32") if config.dtype == "auto" else config.dtype
    attention = config.attention
    if attention == "auto":
        attention, reason = choose_backend(device, shape.head_dim, config.block_size, dtype)
        if on_gpu:
            say(f"attention auto: {attention} ({reason})")
    check_device(attention, device)
    kind = backend_class(attention)
    block_size = kind.default_block_size if config.block_size == "auto" else int(config.block_size)
    kind.check(block_size, shape.head_dim, dtype)
    operators = config.operators
    if operators == "auto":
        operators = "triton" if on_gpu and not missing_packages("triton") else "torch"
    blocks = config.num_kv_blocks
    if blocks is None and (not on_gpu or config.kv_cache_gib is not None):
        blocks = num_kv_blocks(config, cache_bytes_per_block(shape, block_size, dtype))
    return DeviceSettings(
        device=device,
        dtype=dtype,
        attention=attention,
        operators=operators,
        block_size=block_size,
        max_model_len=max_model_len(checkpoint, config),
        num_kv_blocks=blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        gpu_memory_utilization=config.gpu_memory_utilization,
        enforce_eager=config.enforce_eager,
        num_threads=max(1, threads // config.tensor_parallel_size),
    )


def load_runner(
    checkpoint: Checkpoint, settings: DeviceSettings, parallel: TensorParallel = WHOLE
) -> tuple[ModelRunner, int]:
    """One rank's model without its cache, and the KV blocks that it has room for (or that the settings say)."""
    torch.set_num_threads(settings.num_threads)
    device = f"cuda:{parallel.rank}" if settings.device == "cuda" else settings.device
    runner = ModelRunner(
        checkpoint,
        num_kv_blocks=None,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        attention=settings.attention,
        dtype=settings.dtype,
        device=device,
        operators=settings.operators,
        parallel=parallel,
    )
    if settings.num_kv_blocks is not None:
        return runner, settings.num_kv_blocks
    blocks = fitting_kv_blocks(
        runner, settings.max_num_seqs, settings.max_num_batched_tokens, settings.gpu_memory_utilization, _costly_draw
    )
    return runner, blocks


def start_runner(runner: ModelRunner, settings: DeviceSettings, blocks: int) -> None:
    """Make the cache and, unless that is turned off, capture the decode steps."""
    runner.allocate(blocks)
    if not settings.enforce_eager and runner.attention.captures_decodes:
        runner.capture_graphs(settings.max_num_seqs)


def make_device_executor(
    checkpoint: Checkpoint, config: EngineConfig, device: str, threads: int
) -> tuple[DeviceExecutor, dict[str, Any]]:
    """The executor of one rank here or of several in processes of their own, and what of it decides the speed.

    Raises:
        ValueError: as ``resolve_settings``, or the model cannot be shared or does not fit.
    """
    settings = resolve_settings(checkpoint, config, device, threads)
    if config.tensor_parallel_size > 1:
        from engine.parallel_runner import TensorParallelRunner

        runner: DeviceRunner = TensorParallelRunner(checkpoint.config, config, settings)
    else:
        local, blocks = load_runner(checkpoint, settings)
        start_runner(local, settings, blocks)
        runner = LocalRunner(local)
    facts: dict[str, Any] = {
        "backend": "torch",
        "dtype": settings.dtype,
        "attention": settings.attention,
        "operators": settings.operators,
        "device": device,
        "tensor_parallel_size": config.tensor_parallel_size,
        "cuda_graphs": not settings.enforce_eager and backend_class(settings.attention).captures_decodes,
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return DeviceExecutor(runner, config.seed), facts


def _costly_draw(logits: Tensor) -> Drawn:
    """The draw that takes most memory, for the warm-up."""
    rows, vocab = logits.shape
    each = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logprobs=20)
    params, zeros = [each] * rows, [0] * rows
    known = [np.zeros(1, dtype=np.int32)] * rows
    return draw(
        logits, SamplingInput.of(params, zeros, zeros, Adjustments.of(params, known, zeros, [()] * rows, vocab))
    )
