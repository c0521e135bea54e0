"""The executor that computes: flat input, forward pass, sampling. Takes the torch runner or the native one.

Torch is loaded for the torch runner only, and to pack weights the first time: it takes longer than all the rest.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.device import find_device
from engine.executors.base import ScheduledBatch
from engine.layers.sampler import adjust, log_probabilities, sample, stream_seed, weigh
from engine.model_input import ModelInput, build_model_input
from engine.models.config import ModelConfig
from engine.native import BLOCK_SIZE as NATIVE_BLOCK_SIZE
from engine.native import NativeRunner, NativeUnavailableError, kv_bytes_per_block, source_fingerprint
from engine.sequence import Sequence
from engine.tokenizer import special_token_ids
from engine.weights.checkpoint import Checkpoint, load_checkpoint
from engine.weights.fetch import say

if TYPE_CHECKING:
    from engine.build import ExecutorFacts


DEFAULT_KV_CACHE_GIB = 1.0  # on a CPU


class Runner(Protocol):
    """A model with its key-value cache."""

    config: ModelConfig
    block_size: int
    num_kv_blocks: int
    max_model_len: int

    def forward(self, step: ModelInput, /) -> NDArray[np.float32]:
        """float32 logits [R, vocab], good until the next call."""
        ...


class ModelExecutor:
    """Computes scheduled batches for real; the duration is the wall-clock time of input, forward pass and sampling.

    Args:
        runner: the model.
        seed: from which the streams of requests without a seed of their own come.
    """

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.seed = seed
        self.weigh = runner.weigh if isinstance(runner, NativeRunner) else weigh
        self.block_size = runner.block_size
        self.num_kv_blocks = runner.num_kv_blocks
        self.max_model_len = runner.max_model_len
        self.vocab_size: int | None = runner.config.vocab_size

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        """One token id for every sequence that needs one, in batch order, and the seconds it took."""
        started = time.perf_counter()
        step = build_model_input(batch, self.block_size)
        logits = self.runner.forward(step)
        seqs = [seq for seq, needs in zip(batch.seqs, batch.needs_token, strict=True) if needs]
        tokens = self._choose(logits, seqs) if seqs else []
        return tokens, time.perf_counter() - started

    def _choose(self, logits: NDArray[np.float32], seqs: list[Sequence]) -> list[int]:
        """A token for each row; log-probabilities go straight to the sequences that ask for them."""
        params = [seq.params for seq in seqs]
        seeds, positions = self.streams(seqs)
        special = [i for i, options in enumerate(params) if options.is_special]
        if not special:
            return sample(logits, params, seeds, positions, self.weigh)
        rows = list(logits)
        for i in special:
            seq = seqs[i]
            rows[i] = adjust(logits[i], params[i], seq.token_ids, seq.num_prompt_tokens, seq.eos_token_ids)
        tokens = sample(rows, params, seeds, positions, self.weigh)
        for i in special:
            wanted = params[i].logprobs
            if wanted is not None:
                # A slice, not an append: a step that was abandoned after this point is computed again.
                seqs[i].logprobs[seqs[i].num_output_tokens :] = [log_probabilities(logits[i], tokens[i], wanted)]
        return tokens

    def streams(self, seqs: list[Sequence]) -> tuple[list[int], list[int]]:
        """The seed of each sequence's random stream, and the position in it of the next token's draw."""
        seeds = [
            seq.params.seed if seq.params.seed is not None else stream_seed(self.seed, seq.request_id) for seq in seqs
        ]
        return seeds, [seq.num_tokens for seq in seqs]

    def forget(self, request_id: str) -> None:
        """Nothing is kept for a request: its draws follow from seed and position."""


def make_model_executor(config: EngineConfig) -> tuple[ModelExecutor, ExecutorFacts]:
    """Load the model that ``config`` names on the back end that it asks for.

    Raises:
        ValueError: the model is unknown or unsupported, an option doesn't fit it, or the native back end was asked for
            and cannot be had.
    """
    from engine.build import ExecutorFacts, processor_name  # engine.build imports this module when it makes an executor

    threads = config.num_threads or len(os.sched_getaffinity(0))
    device = find_device(config)
    checkpoint = load_checkpoint(config.model, config.seed, device)
    executor: ModelExecutor
    if device == "cuda" or config.tensor_parallel_size > 1:
        if config.quantization != "none":
            raise ValueError(
                f"quantization {config.quantization!r} belongs to the native step; take device: cpu with it"
            )
        if config.backend == "native":
            raise ValueError(
                "tensor_parallel_size above 1 belongs to backend: torch or auto; the native step has one process"
            )
        from engine.executors.device import make_device_executor  # it extends the executor of this module

        executor, backend = make_device_executor(checkpoint, config, device, threads)
    else:
        runner, backend = _make_runner(checkpoint, config, threads)
        executor = ModelExecutor(runner, config.seed)
    shape = checkpoint.config
    execution = {
        "executor": "model",
        "model": checkpoint.source,
        "weights": checkpoint.fingerprint,
        "num_threads": threads,
        "processor": processor_name(),
        **backend,
    }
    facts = ExecutorFacts(shape.vocab_size, shape.eos_token_ids, _special_tokens(checkpoint), execution)
    return executor, facts


def _make_runner(checkpoint: Checkpoint, config: EngineConfig, threads: int) -> tuple[Runner, dict[str, Any]]:
    """The runner that ``config.backend`` asks for, and what of it decides the speed.

    ``auto`` takes the native step unless the options name an attention, which only torch has; where it cannot be had, the
    reason is told.
    """
    if config.backend == "native":
        if config.attention != "auto":
            raise ValueError(f"attention {config.attention!r} belongs to backend: torch; the native step has its own")
        try:
            return _native_runner(checkpoint, config, threads)
        except NativeUnavailableError as error:
            raise ValueError(f"backend native cannot be had here: {error}") from error
    if config.backend == "torch":
        return _torch_runner(checkpoint, config, threads)
    if config.attention != "auto":
        return _torch_runner(checkpoint, config, threads)
    try:
        return _native_runner(checkpoint, config, threads)
    except (NativeUnavailableError, ValueError) as error:
        if config.quantization != "none":
            raise ValueError(f"quantization {config.quantization!r} needs the native step ({error})") from error
        say(f"backend auto: torch, because the native step cannot be had ({error})")
        return _torch_runner(checkpoint, config, threads)


def _native_runner(checkpoint: Checkpoint, config: EngineConfig, threads: int) -> tuple[Runner, dict[str, Any]]:
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    block_size = NATIVE_BLOCK_SIZE if config.block_size == "auto" else int(config.block_size)
    runner = NativeRunner(
        checkpoint,
        num_kv_blocks=num_kv_blocks(config, kv_bytes_per_block(checkpoint.config, block_size, dtype)),
        max_model_len=max_model_len(checkpoint, config),
        block_size=block_size,
        num_threads=threads,
        dtype=dtype,
        quantization=config.quantization,
        keep_packed=checkpoint.tokenizer_path is not None,  # random weights are made faster than read
    )
    facts = {
        "backend": "native",
        "instructions": runner.instructions,
        "dtype": dtype,
        "quantization": config.quantization,
    }
    return runner, {**facts, "native_source": source_fingerprint()}


def _torch_runner(checkpoint: Checkpoint, config: EngineConfig, threads: int) -> tuple[Runner, dict[str, Any]]:
    import torch

    from engine.attention.backends import backend_class, check_device
    from engine.model_runner import ModelRunner, cache_bytes_per_block

    dtype = "float32" if config.dtype == "auto" else config.dtype
    attention = "sdpa" if config.attention == "auto" else config.attention
    operators = "torch" if config.operators == "auto" else config.operators
    check_device(attention, "cpu")
    block_size = backend_class(attention).default_block_size if config.block_size == "auto" else int(config.block_size)
    torch.set_num_threads(threads)
    runner = ModelRunner(
        checkpoint,
        num_kv_blocks=num_kv_blocks(config, cache_bytes_per_block(checkpoint.config, block_size, dtype)),
        max_model_len=max_model_len(checkpoint, config),
        block_size=block_size,
        attention=attention,
        dtype=dtype,
        operators=operators,
    )
    return runner, {
        "backend": "torch",
        "torch": torch.__version__,
        "dtype": dtype,
        "attention": attention,
        "operators": operators,
    }


def num_kv_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Blocks as given, or as many as the memory given (or the default of a CPU) holds."""
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    gib = config.kv_cache_gib or DEFAULT_KV_CACHE_GIB
    blocks = int(gib * 2**30) // block_bytes
    if blocks < 1:
        raise ValueError(
            f"kv_cache_gib = {gib} holds no KV block of {block_bytes} bytes; give at least {block_bytes / 2**30:.2g}"
        )
    return blocks


def max_model_len(checkpoint: Checkpoint, config: EngineConfig) -> int:
    """Longest sequence: the model's limit, or less if the options say so."""
    limit = checkpoint.config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ValueError(f"max_model_len is {config.max_model_len}; {checkpoint.source} was made for at most {limit}")
    return config.max_model_len or limit


def _special_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Ids of control tokens, which random prompts should leave out."""
    if checkpoint.tokenizer_path is None:
        return ()
    return special_token_ids(checkpoint.tokenizer_path)
