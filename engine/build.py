"""Puts an engine together from its options: executor, scheduler, core, and the facts that follow from them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.base import Executor
from engine.executors.emulated import EmulatedExecutor
from engine.executors.placeholder import PlaceholderTokens
from engine.executors.step_time import LinearStepTime
from engine.scheduler import Scheduler

EMULATED_BLOCK_SIZE = 16
EMULATED_KV_BLOCKS = 4096
EMULATED_MAX_MODEL_LEN = 8192
EMULATED_VOCABULARY = 32_768


@dataclass(frozen=True)
class EngineInfo:
    """What the engine derived from its options: observed facts for run.json.

    ``fingerprints`` has two dictionaries. A step-time model fitted under one *execution* fingerprint says nothing about
    another; it may be used under any *scheduling* fingerprint.
    """

    block_size: int
    num_kv_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_token_ids: tuple[int, ...]
    fingerprints: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ExecutorFacts:
    """What an executor tells about itself: its tokens, and what its speed depends on."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_token_ids: tuple[int, ...]
    execution: dict[str, Any]


def build_core(config: EngineConfig) -> tuple[EngineCore, EngineInfo]:
    """The core of the engine that ``config`` describes, weights loaded, and the facts about it.

    Raises:
        ValueError: the model is unknown or unsupported, or an option doesn't fit it.
    """
    executor, facts = _make_executor(config)
    scheduler = Scheduler(config, executor.num_kv_blocks, executor.block_size, executor.max_model_len)
    core = EngineCore(scheduler, executor, eos_token_ids=frozenset(facts.eos_token_ids), max_queue=config.max_queue)
    scheduling = {
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "block_size": executor.block_size,
        "num_kv_blocks": executor.num_kv_blocks,
        "max_model_len": executor.max_model_len,
        "enable_prefix_caching": config.enable_prefix_caching,
        "watermark": config.watermark,
        "policy": config.policy,
        "ageing": config.ageing,
        "max_queue": config.max_queue,
    }
    info = EngineInfo(
        block_size=executor.block_size,
        num_kv_blocks=executor.num_kv_blocks,
        max_model_len=executor.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        special_token_ids=facts.special_token_ids,
        fingerprints={"execution": _with_digest(facts.execution), "scheduling": _with_digest(scheduling)},
    )
    return core, info


def _make_executor(config: EngineConfig) -> tuple[Executor, ExecutorFacts]:
    if config.executor == "emulated":
        return _emulated_executor(config)
    from engine.executors.model import make_model_executor  # needs numpy, and torch at times

    return make_model_executor(config)


def _emulated_executor(config: EngineConfig) -> tuple[Executor, ExecutorFacts]:
    step_time = LinearStepTime.from_mapping(config.step_time)
    executor = EmulatedExecutor(
        step_time,
        PlaceholderTokens(),
        block_size=EMULATED_BLOCK_SIZE if config.block_size == "auto" else int(config.block_size),
        num_kv_blocks=config.num_kv_blocks or EMULATED_KV_BLOCKS,
        max_model_len=config.max_model_len or EMULATED_MAX_MODEL_LEN,
    )
    execution = {"executor": "emulated", "step_time": dict(config.step_time)}
    return executor, ExecutorFacts(EMULATED_VOCABULARY, (), (), execution)


def processor_name() -> str:
    """The processor's name as the operating system gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        name = ""
    return name or os.uname().machine


def _with_digest(facts: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(facts, sort_keys=True, default=str)
    return {**facts, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
