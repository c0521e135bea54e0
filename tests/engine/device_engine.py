"""A core around the device executor on a CPU, where the engine itself takes it only for several ranks."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.device import DeviceExecutor, LocalRunner, load_runner, resolve_settings, start_runner
from engine.executors.model import ModelExecutor
from engine.model_runner import ModelRunner
from engine.scheduler import Scheduler
from engine.weights.checkpoint import load_checkpoint


def device_runner(config: EngineConfig) -> ModelRunner:
    """The runner of one rank, its decodes on the static buffers of the graphs where the attention can be captured."""
    checkpoint = load_checkpoint(config.model)
    settings = resolve_settings(checkpoint, config, "cpu", 1)
    runner, blocks = load_runner(checkpoint, settings)
    start_runner(runner, settings, blocks)
    return runner


def device_core(config: EngineConfig, on_host: bool = False) -> EngineCore:
    """A core on that runner, which draws on the device, or (``on_host``) row by row on the host."""
    runner = device_runner(config)
    executor = ModelExecutor(runner, config.seed) if on_host else DeviceExecutor(LocalRunner(runner), config.seed)
    scheduler = Scheduler(config, runner.num_kv_blocks, runner.block_size, runner.max_model_len)
    return EngineCore(scheduler, executor, eos_token_ids=frozenset(runner.config.eos_token_ids))
