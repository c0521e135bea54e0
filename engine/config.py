"""The engine's options. Frozen; what the engine derives from them (block count, fingerprints) goes into ``EngineInfo``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from engine.executors.step_time import LinearStepTime

DEFAULT_MODEL = "smollm2-135m-instruct"

CHOICES: dict[str, tuple[str, ...]] = {
    "executor": ("model", "emulated"),
    "backend": ("auto", "native", "torch"),
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantization": ("none", "int8"),
    "attention": ("auto", "reference", "sdpa", "triton", "flash_attn"),
    "operators": ("auto", "torch", "triton", "compile"),
    "policy": ("fcfs", "priority", "sjf", "prefill_first", "static_batch"),
}

# nano-vllm's names for the same things
ALIASES = {"kvcache_block_size": "block_size", "num_kvcache_blocks": "num_kv_blocks"}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Every option of the engine; each is also a key under ``engine:`` in experiments.yaml.

    Attributes:
        model: preset, folder, GGUF file, hub id or ``random:<shape>``.
        executor: ``model`` computes; ``emulated`` spins for the time that ``step_time`` gives, in place of the model.
        step_time: seconds of an emulated step as coefficients of ``LinearStepTime`` (engine/executors/step_time.py).
        backend: ``native`` is the C++ step, ``torch`` the plain PyTorch path; ``auto`` takes the native one where it builds.
        device: where the torch path computes; ``auto`` takes a GPU where there is one, unless ``backend`` is ``native``.
        dtype: of weights and KV cache; ``auto`` is bfloat16 for ``native`` and on a GPU, and float32 for ``torch`` on a CPU.
        quantization: ``int8`` keeps the weights of the native step as int8, one scale an output: half the memory to read, and
            a step that is nearly twice as fast while few requests run, at a loss stated in docs/measurement.md.
        attention: attention of the torch path; ``reference`` gives each request bitwise the same tokens in any batch.
        operators: the norms, rotations and activations between the matrix products: plain ``torch``, fused in ``triton``, or
            through torch.compile (``compile``); ``auto`` is ``triton`` on a GPU, else ``torch``.
        enforce_eager: on a GPU, run decode steps without CUDA graphs.
        tensor_parallel_size: processes that share the model (torch path only), each on a GPU of its own, or all on the CPU.
        max_model_len: tokens of one request, prompt and output; ``None`` takes the model's own limit.
        max_num_seqs: seats: requests running at the same time.
        max_num_batched_tokens: tokens that one step computes at most (at least ``max_num_seqs``).
        block_size: tokens of one KV block; ``auto`` lets the back end choose.
        num_kv_blocks: KV blocks; ``None`` fills ``kv_cache_gib``.
        kv_cache_gib: memory for the KV cache in GiB (of all ranks together) where ``num_kv_blocks`` is not given; ``None`` is
            1 on a CPU, and on a GPU what ``gpu_memory_utilization`` leaves.
        gpu_memory_utilization: share of a GPU's memory that weights, cache and the largest step may take together.
        enable_prefix_caching: share full KV blocks between requests with the same beginning.
        watermark: share of the KV blocks that admission leaves free for running requests to grow.
        policy: who goes first (see engine/policies.py).
        ageing: what a second of waiting is worth under ``priority`` (levels) and ``sjf`` (tokens); 0 is none.
        max_queue: requests that may wait; one more is refused. ``None`` is no limit.
        num_threads: threads of a step; ``None`` is one per core of the process.
        seed: of the sampling streams (and of ``random:`` weights).

    Raises:
        ValueError: a value is out of range; the message names the option and what is allowed.
    """

    model: str = DEFAULT_MODEL
    executor: str = "model"
    step_time: Mapping[str, float] = field(default_factory=dict)
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    attention: str = "auto"
    operators: str = "auto"
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    block_size: int | str = "auto"
    num_kv_blocks: int | None = None
    kv_cache_gib: float | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    policy: str = "fcfs"
    ageing: float = 0.0
    max_queue: int | None = None
    num_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        native = {
            "backend": ("auto", "native"),
            "dtype": ("auto", "bfloat16"),
            "attention": ("auto",),
            "device": ("auto", "cpu"),
            "tensor_parallel_size": (1,),
        }
        for name, allowed_with in native.items():
            if self.quantization != "none" and getattr(self, name) not in allowed_with:
                raise ValueError(
                    f"quantization {self.quantization!r} belongs to the native step: {name} is {getattr(self, name)!r}; "
                    f"with it it must be {' or '.join(map(str, allowed_with))}"
                )
        if (self.executor == "emulated") != bool(self.step_time):
            raise ValueError("step_time belongs to executor: emulated, which needs it; give both or neither")
        LinearStepTime.from_mapping(self.step_time)
        for name in ("max_model_len", "num_kv_blocks", "max_queue", "num_threads"):
            self._require_count(name, optional=True)
        for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size"):
            self._require_count(name)
        if self.block_size != "auto":
            self._require_count("block_size")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than max_num_seqs = {self.max_num_seqs}: "
                "every running request needs a token a step; raise the one or lower the other"
            )
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark is {self.watermark}; it must be a share in [0, 1)")
        if not 0.0 <= self.ageing < math.inf:
            raise ValueError(f"ageing is {self.ageing}; it must be a finite number of at least 0")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization is {self.gpu_memory_utilization}; it must be a share in (0, 1]")
        if self.kv_cache_gib is not None and not 0.0 < self.kv_cache_gib < math.inf:
            raise ValueError(f"kv_cache_gib is {self.kv_cache_gib}; it must be a finite number above 0")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ValueError(f"enable_prefix_caching is {self.enable_prefix_caching!r}; it must be true or false")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed is {self.seed!r}; it must be a whole number")

    def _require_count(self, name: str, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """A config from keyword options, nano-vllm's names included; an unknown one is an error with a suggestion."""
        known = [option.name for option in fields(cls)]
        resolved: dict[str, Any] = {}
        for name, value in options.items():
            target = ALIASES.get(name, name)
            if target not in known:
                close = difflib.get_close_matches(name, known + list(ALIASES), n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; options are {', '.join(known)}"
                raise ValueError(f"unknown engine option {name!r}{hint}")
            if target in resolved:
                raise ValueError(f"{name!r} and its alias {target!r} are both given; give one")
            resolved[target] = value
        return cls(**resolved)
