"""What ``gpu_parts`` holds the engine against (transformers' continuous batching), and the engine of a dry run."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any

import torch

from engine import LLM
from engine.models.config import ModelConfig


def transformers_seconds(
    config: ModelConfig, prompts: list[list[int]], outputs: int, device: torch.device
) -> Iterator[float]:
    """Seconds of ``generate_batch`` on a model of this shape with random weights, called twice: with its start-up (cache,
    CUDA graphs), and on the manager that the first call leaves behind. No prefix is shared in either.

    ``outputs`` tokens are drawn for every prompt at temperature 0.6, in bfloat16, with the attention that transformers
    takes by itself (flash-attn where it is installed, else paged SDPA). Written for transformers 5.17 to 5.24.

    Raises:
        RuntimeError: this version has another interface, or does not give back what was asked for.
    """
    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig

    try:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        # Left to itself it takes most of a CPU's memory, and minutes.
        sizes: dict[str, Any] = {"num_blocks": 4, "max_batch_tokens": 64} if device.type == "cpu" else {}
        batching = ContinuousBatchingConfig(allow_block_sharing=False, **sizes)
        draws = GenerationConfig(
            max_new_tokens=outputs, do_sample=True, temperature=0.6, top_k=0, eos_token_id=-1, pad_token_id=0
        )
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        with device:
            model = AutoModelForCausalLM.from_config(hf_config(config), dtype=dtype, attn_implementation="sdpa").eval()
        options = {"generation_config": draws, "continuous_batching_config": batching, "persistent_manager": True}
        inspect.signature(model.generate_batch).bind(inputs=prompts, progress_bar=False, **options)
    except (ImportError, AttributeError, TypeError) as error:
        raise RuntimeError(
            f"transformers {transformers.__version__} has another continuous batching than 5.17 to 5.24 ({error})"
        ) from error
    for _ in range(2):
        started = time.perf_counter()
        done = model.generate_batch(inputs=prompts, progress_bar=False, **options)
        seconds = time.perf_counter() - started
        short = [name for name, each in done.items() if len(each.generated_tokens) != outputs]
        if len(done) != len(prompts) or short:
            raise RuntimeError(f"{len(done)} of {len(prompts)} requests came back, {len(short)} of them too short")
        yield seconds


def hf_config(config: ModelConfig) -> Any:
    """transformers' configuration of this shape."""
    import transformers

    kind = {"qwen3": "Qwen3Config", "qwen2": "Qwen2Config", "llama": "LlamaConfig"}[config.model_type]
    return getattr(transformers, kind)(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )


def dry_engine(model: str, options: dict[str, Any]) -> LLM:
    """An ``LLM`` around the device executor on the CPU, which the engine itself takes only for a GPU or several ranks."""
    from engine.executors.device import DeviceExecutor, LocalRunner, load_runner, resolve_settings, start_runner
    from engine.weights.checkpoint import load_checkpoint

    plain = {key: value for key, value in options.items() if key not in ("attention", "operators", "enforce_eager")}
    llm = LLM(model, **plain, block_size=16)
    config = type(llm.config).from_options(model=model, device="cpu", **options, block_size=16)
    checkpoint = load_checkpoint(model)
    settings = resolve_settings(checkpoint, config, "cpu", 1)
    runner, blocks = load_runner(checkpoint, settings)
    start_runner(runner, settings, blocks)
    llm.core.executor = DeviceExecutor(LocalRunner(runner))
    return llm
