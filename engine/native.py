"""The native CPU step from Python: packs a checkpoint's weights, owns the KV cache, computes a whole step in one call.

The library (engine/csrc) is plain C to its caller and loaded with ctypes, which releases the GIL during a step.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.csrc.build import NativeUnavailableError, build_library, fastest_instructions, source_fingerprint
from engine.model_input import ModelInput
from engine.models.config import ModelConfig
from engine.weights.checkpoint import Checkpoint
from engine.weights.packed import PackedWeights

if TYPE_CHECKING:
    import torch

__all__ = ["NativeRunner", "NativeUnavailableError", "kv_bytes_per_block", "source_fingerprint"]

BLOCK_SIZE = 16  # the default; any multiple of it works
_TYPES = {"bfloat16": "bf16", "float32": "fp32"}  # as the library calls them
QUANTIZATIONS = ("none", "int8")
_BYTES = {"bfloat16": 2, "float32": 4}

# The order of `enum Weight` in step.h.
_WEIGHTS = [
    "embedding", "final_norm", "lm_head", "cosine", "sine",
    "input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "attention_out", "post_norm", "gate", "up", "down",
]  # fmt: skip

# `enum Fault` in step.h.
_FAULTS = {
    1: "token_ids: an id is outside the vocabulary",
    2: "positions: a position is outside 0 .. max_model_len - 1",
    3: "query_start: must ascend from 0 to the number of rows",
    4: "context_lens: must cover the rows' positions and fit the block table",
    5: "block_tables: a block that the context needs is missing or not in the cache",
    6: "slot_mapping: a slot is outside the cache",
    7: "logit_rows: must be ascending rows of the step",
}


# `enum Phase` in step.h.
PHASES = ("embed", "norm", "qkv", "rope and cache", "attention", "out", "gate and up", "down", "lm_head")


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in (
            "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_positions",
            "block_size", "num_blocks", "threads", "rope_positions", "attention_bias", "qk_norm",
        )),
        ("eps", ctypes.c_float),
    ]  # fmt: skip


_ARRAYS = ("token_ids", "positions", "query_start", "context_lens", "block_tables", "slot_mapping", "logit_rows")


class _StepInput(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("tokens", "seqs", "table_width", "logits")),
        *((name, ctypes.c_void_p) for name in (*_ARRAYS, "out")),
    ]  # fmt: skip


def kv_bytes_per_block(config: ModelConfig, block_size: int, kv_dtype: str = "bfloat16") -> int:
    """Bytes that one KV block takes over all layers."""
    values = 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size
    return values * _BYTES[kv_dtype]


class NativeRunner:
    """Computes steps of one model on CPU threads; the numbers of a request do not depend on what runs beside it.

    Args:
        checkpoint: weights (copied into the packed layout).
        num_kv_blocks: blocks of the KV cache, which the runner owns.
        block_size: tokens of a block, a multiple of 16.
        num_threads: of the step, the calling one included; they run on the cores the process may use.
        max_model_len: longest sequence, prompt and output.
        dtype: of the weights: ``bfloat16``, or ``float32`` to compare with the torch path.
        kv_dtype: of the KV cache, the same two; as ``dtype`` where not given.
        instructions: one of ``engine.csrc.build.INSTRUCTIONS``; the fastest that work here where not given.
        quantization: ``int8`` keeps every matrix but the embedding table as int8 with one scale an output, made from the
            float32 weights, and multiplies it with rows of activations in two int8 digits with one scale a row.
        keep_packed: take the packed weights from the cache folder, or pack and keep them there.

    Raises:
        ValueError: a size that the kernels do not support; the message says which they do.
        NativeUnavailableError: the library cannot be built here.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_kv_blocks: int,
        max_model_len: int,
        block_size: int = BLOCK_SIZE,
        num_threads: int = 1,
        dtype: str = "bfloat16",
        kv_dtype: str | None = None,
        keep_packed: bool = False,
        instructions: str | None = None,
        quantization: str = "none",
    ) -> None:
        config = checkpoint.config
        kv_dtype = kv_dtype or dtype
        _check(config, num_kv_blocks, block_size, num_threads, max_model_len, dtype, kv_dtype)
        if quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization is {quantization!r}; the native step takes {', '.join(QUANTIZATIONS)}")
        weights_as = _TYPES[dtype] if quantization == "none" else quantization
        if quantization != "none" and dtype != "bfloat16":
            raise ValueError(f"dtype is {dtype!r}; with quantization {quantization!r} it must be bfloat16")
        self.instructions = instructions or fastest_instructions()
        path = build_library(weights_as, _TYPES[kv_dtype], instructions=self.instructions)
        library = _load(path)
        self.config = config
        self.block_size = block_size
        self.num_kv_blocks = num_kv_blocks
        self.max_model_len = max_model_len
        rope_positions = max(max_model_len, config.max_position_embeddings)
        shape = _Shape(
            config.num_layers, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads,
            config.head_dim, config.vocab_size, max_model_len, block_size, num_kv_blocks, num_threads, rope_positions,
            config.attention_bias, config.qk_norm, config.rms_norm_eps,
        )  # fmt: skip
        self._model = ctypes.c_void_p(library.lab_create(ctypes.byref(shape)))
        if not self._model:
            raise MemoryError(
                f"no memory for {num_kv_blocks} KV blocks of {kv_bytes_per_block(config, block_size, kv_dtype)} bytes, "
                f"or no {num_threads} threads"
            )
        self._step = library.lab_step
        self._weigh = library.lab_weigh
        self._phase_seconds = library.lab_phase_seconds(self._model)
        self.close = weakref.finalize(self, library.lab_destroy, self._model)
        put = _Put(library, self._model)
        if not keep_packed:
            _set_weights(put, checkpoint, dtype, quantization, rope_positions)
        else:
            size = library.lab_weight_bytes(self._model)
            weights = memoryview((ctypes.c_char * size).from_address(library.lab_weights(self._model))).cast("B")
            packed = PackedWeights(checkpoint.fingerprint, config, weights_as, str(rope_positions), path.stem)
            if not packed.read_into(weights):
                _set_weights(put, checkpoint, dtype, quantization, rope_positions)
                packed.write(weights)
        self._logits = np.empty((0, config.vocab_size), dtype=np.float32)

    def forward(self, model_input: ModelInput) -> NDArray[np.float32]:
        """Logits of ``model_input.logit_rows``, float32 [R, vocab]; keys and values go to the cache.

        The array is the runner's own and is overwritten by the next call (fresh memory for it would cost a page fault
        every 4 KiB, a tenth of a step at 32 rows).

        Raises:
            ValueError: an index is out of range; nothing has been computed.
        """
        if not self.close.alive:
            raise ValueError("this runner has been closed")
        rows = len(model_input.logit_rows)
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.config.vocab_size), dtype=np.float32)
        # Keeps the arrays alive during the call; most are contiguous int32 already and not copied.
        arrays = [np.ascontiguousarray(getattr(model_input, name), dtype=np.int32) for name in _ARRAYS]
        tokens, seqs = len(model_input.token_ids), len(model_input.context_lens)
        _check_lengths(model_input, tokens, seqs)
        if tokens == 0:
            return self._logits[:0]
        step = _StepInput(
            tokens, seqs, arrays[4].shape[1], rows, *(array.ctypes.data for array in arrays), self._logits.ctypes.data
        )
        fault = self._step(self._model, ctypes.byref(step))
        if fault:
            raise ValueError(f"model input not accepted: {_FAULTS[fault]}")
        return self._logits[:rows]

    def weigh(self, row: NDArray[np.float32], top: float, inverse_temperature: float) -> NDArray[np.float32]:
        """As ``engine.layers.sampler.weigh``, in a fifth of the time."""
        row = np.ascontiguousarray(row, dtype=np.float32)
        weights = np.empty_like(row)
        self._weigh(row.ctypes.data, len(row), top, inverse_temperature, weights.ctypes.data)
        return weights

    def phase_seconds(self) -> dict[str, float]:
        """How long each of ``PHASES`` took in the last step, waiting for the other threads included."""
        return {name: float(self._phase_seconds[i]) for i, name in enumerate(PHASES)}


class _Put:
    """Hands tensors to the library, which copies them into its layout."""

    def __init__(self, library: ctypes.CDLL, model: ctypes.c_void_p) -> None:
        self._set = library.lab_set
        self._model = model

    def __call__(self, weight: str, layer: int, *tensors: torch.Tensor, to: str = "float32") -> None:
        """Several tensors are stacked on top of each other."""
        import torch

        parts = [tensor.to(getattr(torch, to)) for tensor in tensors]
        whole = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
        self._set(self._model, _WEIGHTS.index(weight), layer, whole.data_ptr())


def _set_weights(put: _Put, checkpoint: Checkpoint, dtype: str, quantization: str, rope_positions: int) -> None:
    from engine.layers.rotary_embedding import rope_tables

    config, tensors = checkpoint.config, checkpoint.tensors
    matrix = dtype if quantization == "none" else "float32"  # the library quantizes
    cosines, sines = rope_tables(config, rope_positions)
    put("cosine", 0, cosines)
    put("sine", 0, sines)
    embedding = tensors["model.embed_tokens.weight"]
    put("embedding", 0, embedding, to=dtype)
    put("lm_head", 0, embedding if config.tie_word_embeddings else tensors["lm_head.weight"], to=matrix)
    put("final_norm", 0, tensors["model.norm.weight"])
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        put("input_norm", i, tensors[f"{layer}.input_layernorm.weight"])
        put("post_norm", i, tensors[f"{layer}.post_attention_layernorm.weight"])
        put("qkv", i, *(tensors[f"{attention}.{name}_proj.weight"] for name in "qkv"), to=matrix)
        if config.attention_bias:
            put("qkv_bias", i, *(tensors[f"{attention}.{name}_proj.bias"] for name in "qkv"))
        if config.qk_norm:
            put("q_norm", i, tensors[f"{attention}.q_norm.weight"])
            put("k_norm", i, tensors[f"{attention}.k_norm.weight"])
        put("attention_out", i, tensors[f"{attention}.o_proj.weight"], to=matrix)
        for name in ("gate", "up", "down"):
            put(name, i, tensors[f"{layer}.mlp.{name}_proj.weight"], to=matrix)


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(os.fspath(path))
    library.lab_create.restype = ctypes.c_void_p
    library.lab_create.argtypes = [ctypes.POINTER(_Shape)]
    library.lab_set.restype = None
    library.lab_set.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
    library.lab_weights.restype = ctypes.c_void_p
    library.lab_weights.argtypes = [ctypes.c_void_p]
    library.lab_weight_bytes.restype = ctypes.c_size_t
    library.lab_weight_bytes.argtypes = [ctypes.c_void_p]
    library.lab_step.restype = ctypes.c_int32
    library.lab_step.argtypes = [ctypes.c_void_p, ctypes.POINTER(_StepInput)]
    library.lab_phase_seconds.restype = ctypes.POINTER(ctypes.c_double)
    library.lab_phase_seconds.argtypes = [ctypes.c_void_p]
    library.lab_weigh.restype = None
    library.lab_weigh.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_float, ctypes.c_void_p,
    ]  # fmt: skip
    library.lab_destroy.restype = None
    library.lab_destroy.argtypes = [ctypes.c_void_p]
    return library


def _check(
    config: ModelConfig, blocks: int, block_size: int, threads: int, max_len: int, dtype: str, kv_dtype: str
) -> None:
    for name, value in (("num_kv_blocks", blocks), ("num_threads", threads), ("max_model_len", max_len)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if block_size < 1 or block_size % 16:
        raise ValueError(f"block_size is {block_size}; the native step takes multiples of 16")
    for name, chosen in (("dtype", dtype), ("kv_dtype", kv_dtype)):
        if chosen not in _TYPES:
            raise ValueError(f"{name} is {chosen!r}; the native step takes {', '.join(_TYPES)}")
    if config.head_dim % 16:
        raise ValueError(f"head_dim is {config.head_dim}; the native step takes multiples of 16")
    if config.num_heads % config.num_kv_heads:
        raise ValueError(f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads evenly")


def _check_lengths(model_input: ModelInput, tokens: int, seqs: int) -> None:
    found: dict[str, Any] = {name: getattr(model_input, name).shape for name in _ARRAYS}
    width = found["block_tables"][1] if len(found["block_tables"]) == 2 else -1
    wanted = {
        "token_ids": (tokens,),
        "positions": (tokens,),
        "slot_mapping": (tokens,),
        "query_start": (seqs + 1,),
        "context_lens": (seqs,),
        "block_tables": (seqs, width),
        "logit_rows": (len(model_input.logit_rows),),
    }
    wrong = [f"{name} {found[name]} instead of {shape}" for name, shape in wanted.items() if found[name] != shape]
    if wrong:
        raise ValueError(f"model input not accepted: {'; '.join(wrong)}")
