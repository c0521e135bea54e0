"""The measurements of ``benchmarks.gpu_check``, each a function that hands out rows as they are known.

Times of device work are CUDA events around many repeats; in a dry run on a CPU the same code runs on tiny shapes and its
numbers mean nothing.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine import LLM, SamplingParams
from engine.cuda_graphs import bucket_of
from engine.layers.device_sampler import SamplingInput, sample_on_device
from engine.model_input import ModelInput
from engine.model_runner import ModelRunner
from engine.models.config import ModelConfig

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Sizes of a check: the real ones, or tiny ones for a dry run."""

    dry: bool
    small: str
    large: str
    requests: int
    lengths: tuple[int, int]  # prompts and outputs, uniform
    batches: tuple[int, ...]
    target: int  # the batch size of the targets
    context: int
    prefill: tuple[int, int]  # sequences, tokens each
    budget: int  # tokens a step
    matrix: int
    copy_bytes: int
    repeats: int


REAL = Scale(
    False, "random:qwen3-0.6b", "random:qwen3-8b", 256, (100, 1024), (1, 2, 4, 8, 16, 32, 64, 128, 256), 32, 1024,
    (16, 1024), 16_384, 8192, 1 << 31, 20,
)  # fmt: skip
DRY = Scale(
    True, "random:tiny-qwen3", "random:tiny-llama", 3, (3, 6), (1, 3), 3, 20, (2, 9), 64, 64, 1 << 12, 1
)  # fmt: skip


def limits(scale: Scale) -> Iterator[Row]:
    """What the device can do: copy bandwidth (read + write), bfloat16 matrix product, launches in a graph."""
    device = _device(scale)
    source = torch.zeros(scale.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = device_seconds(lambda: target.copy_(source), scale.repeats)
    yield {"what": "copy bandwidth", "value": 2 * scale.copy_bytes / seconds / 1e9, "unit": "GB/s"}
    a, b = (torch.randn(scale.matrix, scale.matrix, device=device).bfloat16() for _ in range(2))
    seconds = device_seconds(lambda: a @ b, scale.repeats)
    yield {"what": "matrix peak", "value": 2 * scale.matrix**3 / seconds / 1e12, "unit": "TFLOP/s"}
    x = torch.zeros(1, device=device)
    launches = 500

    def tiny() -> None:
        for _ in range(launches):
            x.add_(1.0)

    run = _captured(tiny) if device.type == "cuda" else tiny
    yield {"what": "launch in a graph", "value": device_seconds(run, scale.repeats) / launches * 1e6, "unit": "us"}


def decodes(scale: Scale, model: str, known: dict[str, float]) -> Iterator[Row]:
    """Decode steps of every batch size, the one with a target first."""
    runner = runner_of(make_engine(scale, model))
    yield {"what": f"{model} KV blocks", "value": runner.num_kv_blocks, "unit": f"of {runner.block_size} tokens"}
    for batch in sorted(scale.batches, key=lambda size: (size != scale.target, size)):
        yield decode_row(runner, model, batch, scale, known["copy bandwidth"])


def workloads(scale: Scale, model: str) -> Iterator[Row]:
    """nano-vllm's own workload, tokens/s."""
    yield throughput_row(make_engine(scale, model), f"{model} nano-vllm workload", workload(scale, scale.requests))


def small(scale: Scale, model: str, known: dict[str, float]) -> Iterator[Row]:
    """A model whose steps are mostly launches: their floor, decode steps, the host's share, a prefill."""
    llm = make_engine(scale, model)
    runner = runner_of(llm)
    launches = count_launches(runner, decode_step(runner, 1, scale.context), scale)
    if launches is not None:
        floor = launches * known["launch in a graph"] / 1e3
        yield {"what": f"{model} launch floor of a step", "value": floor, "unit": f"ms ({launches} launches)"}
    yield host_overhead_row(llm, model, scale.target, scale)
    for batch in scale.batches:
        yield decode_row(runner, model, batch, scale, known["copy bandwidth"])
    yield prefill_row(runner, model, scale, known["matrix peak"])


def large(scale: Scale, model: str, known: dict[str, float]) -> Iterator[Row]:
    """A model whose steps are mostly memory: a prefill, the host's share, tokens/s."""
    llm = make_engine(scale, model)
    yield prefill_row(runner_of(llm), model, scale, known["matrix peak"])
    yield host_overhead_row(llm, model, scale.target, scale)
    yield throughput_row(llm, f"{model} nano-vllm workload", workload(scale, scale.requests))


def decode_row(runner: ModelRunner, model: str, batch: int, scale: Scale, bandwidth: float) -> Row:
    """One decode step of ``batch`` rows, captured and eager, against reading weights and context once."""
    step = decode_step(runner, batch, scale.context)
    graphs = runner.graphs
    assert graphs is not None, "the attention cannot be captured"
    with torch.inference_mode():
        graphs.replay(step)
        replay = graphs._replays[bucket_of(batch, graphs.sizes)]
        captured = device_seconds(replay, scale.repeats)
        eager = device_seconds(lambda: runner._eager(step), max(scale.repeats // 4, 1))
    config = runner.config
    moved = weight_bytes(config, runner.dtype.itemsize) + batch * scale.context * kv_bytes(
        config, runner.dtype.itemsize
    )
    bound = moved / (bandwidth * 1e9)
    return {
        "what": f"{model} decode, {batch} rows, context {scale.context}",
        "value": captured * 1e3,
        "unit": "ms",
        "share": bound / captured,
        "of": f"bandwidth bound {bound * 1e3:.2f} ms",
        "eager_ms": eager * 1e3,
    }


def prefill_row(runner: ModelRunner, model: str, scale: Scale, peak: float) -> Row:
    """A step of whole prompts against the matrix peak."""
    seqs, tokens = scale.prefill
    step = prompt_step(runner, seqs, tokens)
    with torch.inference_mode():
        seconds = device_seconds(lambda: runner.logits(step), max(scale.repeats // 4, 1))
    config = runner.config
    attention = 2 * 2 * config.num_layers * config.num_heads * config.head_dim * seqs * tokens * (tokens + 1) / 2
    flop = 2 * matrix_parameters(config) * seqs * tokens + attention + 2 * config.vocab_size * config.hidden_size * seqs
    return {
        "what": f"{model} prefill, {seqs} x {tokens} tokens",
        "value": seconds * 1e3,
        "unit": "ms",
        "share": flop / seconds / (peak * 1e12),
        "of": f"matrix peak, {seqs * tokens / seconds:,.0f} tokens/s",
    }


def host_overhead_row(llm: LLM, model: str, batch: int, scale: Scale) -> Row:
    """What a decode step takes beyond the device's work: period of the engine's loop minus forward pass and draw,
    each timed alone on the device."""
    steps = 4 if scale.dry else 60
    params = SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=2 * steps + 50)
    prompt = min(scale.context, 512)
    for i in range(batch):
        llm.add_request([(i + k) % 400 for k in range(prompt)], params)
    scheduler = llm.core.scheduler
    for _ in range(8):  # every prompt is computed after two or three
        llm.step()
    periods, rows = [], len(scheduler.running)
    for _ in range(steps):
        started = time.perf_counter()
        llm.step()
        periods.append(time.perf_counter() - started)
    runner = runner_of(llm)
    step = decode_step(runner, batch, prompt + steps // 2)
    draws = SamplingInput.of([params] * batch, list(range(batch)), [0] * batch)
    with torch.inference_mode():
        forward = device_seconds(lambda: runner.logits(step), scale.repeats)
        logits = runner.logits(step).clone()
        drawing = device_seconds(lambda: sample_on_device(logits, draws), scale.repeats)
    for seq in list(scheduler.running):
        llm.abort(seq.request_id)
    while not llm.is_finished():
        llm.step()
    period = statistics.median(periods)
    return {
        "what": f"{model} host overhead a step, {batch} rows",
        "value": (period - forward - drawing) * 1e3,
        "unit": "ms",
        "of": f"{rows} running, period {period * 1e3:.2f} ms, forward {forward * 1e3:.2f}, draw {drawing * 1e3:.2f}",
    }


def attentions(scale: Scale, model: str) -> Iterator[Row]:
    """The same requests through each attention back end that can be had, captured and eager."""
    options: list[Row] = [{"attention": "triton"}, {"attention": "triton", "enforce_eager": True}]
    options += [{"attention": "triton", "operators": "torch"}, {"attention": "flash_attn"}, {"attention": "sdpa"}]
    for extra in options:
        name = ", ".join(f"{key} {value}" for key, value in extra.items())
        try:
            llm = make_engine(scale, model, **extra)
        except ValueError as error:
            yield {"what": f"{model} {name}", "value": None, "unit": "", "of": str(error)}
            continue
        is_slow = extra["attention"] == "sdpa" or "enforce_eager" in extra
        few = max(scale.requests // (8 if is_slow else 2), 2)
        yield throughput_row(llm, f"{model} {name}, {few} requests", workload(scale, few))
        del llm
        _free()


def peer(scale: Scale, model: str) -> Iterator[Row]:
    """transformers' continuous batching and this engine on the same requests: equal outputs, one after the other."""
    outputs = 128 if not scale.dry else 3
    few = max(scale.requests // 4, 2)
    prompts = [prompt for prompt, _ in workload(scale, few)]
    llm = make_engine(scale, model)
    ours = throughput_row(llm, f"{model} engine, {few} x {outputs} outputs", [(prompt, outputs) for prompt in prompts])
    config = runner_of(llm).config
    del llm
    _free()
    yield ours
    from benchmarks.gpu_peer import transformers_seconds

    calls = ("first call, with its start-up", "second call")
    for call, seconds in zip(calls, transformers_seconds(config, prompts, outputs, _device(scale)), strict=True):
        rate = few * outputs / seconds
        yield {
            "what": f"{model} transformers, {few} x {outputs}, {call}",
            "value": rate,
            "unit": "tokens/s",
            "of": f"engine / transformers = {ours['value'] / rate:.1f}",
        }


def throughput_row(llm: LLM, name: str, requests: list[tuple[list[int], int]]) -> Row:
    """Output tokens a second over ``requests`` (prompt, outputs), all handed in at once."""
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=outputs) for _, outputs in requests]
    llm.generate([requests[0][0]], SamplingParams(max_tokens=2), use_tqdm=False)
    started = time.perf_counter()
    llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    total = sum(outputs for _, outputs in requests)
    return {"what": name, "value": total / seconds, "unit": "tokens/s", "of": f"{total} tokens in {seconds:.1f} s"}


def make_engine(scale: Scale, model: str, **extra: Any) -> LLM:
    """An engine on the device; in a dry run on the kernels in the interpreter and the graphs' static buffers."""
    options: Row = {"max_num_seqs": scale.batches[-1], "max_num_batched_tokens": scale.budget, "attention": "triton"}
    options |= {"max_model_len": 4096, "backend": "torch", "enable_prefix_caching": False}
    if not scale.dry:
        return LLM(model, **{**options, "device": "cuda", **extra})
    from benchmarks.gpu_peer import dry_engine

    return dry_engine(model, {**options, "max_model_len": 128, "num_kv_blocks": 16, "num_threads": 1, **extra})


def workload(scale: Scale, count: int) -> list[tuple[list[int], int]]:
    """nano-vllm's: prompts and outputs of uniform length, random ids, from seed 0."""
    draw = random.Random(0)
    low, high = scale.lengths
    top = 500 if scale.dry else 10_000
    prompts = [[draw.randint(0, top) for _ in range(draw.randint(low, high))] for _ in range(count)]
    return [(prompt, draw.randint(low, high)) for prompt in prompts]


def runner_of(llm: LLM) -> ModelRunner:
    runner = llm.core.executor.runner.runner  # type: ignore[attr-defined]
    assert isinstance(runner, ModelRunner)
    return runner


def decode_step(runner: ModelRunner, batch: int, context: int) -> ModelInput:
    """``batch`` sequences of ``context`` tokens, the last of them new. Blocks are shared where there are too few."""
    blocks = -(-context // runner.block_size)
    tables = (np.random.default_rng(0).permutation(batch * blocks) % runner.num_kv_blocks).reshape(batch, blocks)
    last = np.full(batch, context - 1)
    slots = tables[:, -1] * runner.block_size + (context - 1) % runner.block_size
    rows = np.arange(batch)
    arrays = (rows, last, np.arange(batch + 1), last + 1, tables, slots, rows)
    return ModelInput(*(array.astype(np.int32) for array in arrays))


def prompt_step(runner: ModelRunner, seqs: int, tokens: int) -> ModelInput:
    """``seqs`` whole prompts of ``tokens`` tokens."""
    from engine.kv_sizing import largest_step

    step = largest_step(seqs, seqs * tokens, runner.max_model_len, runner.block_size)
    assert int(step.block_tables.max()) < runner.num_kv_blocks
    return step


def matrix_parameters(config: ModelConfig) -> int:
    """Parameters of the layers' matrices."""
    heads = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * heads[0] + heads[1])
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def weight_bytes(config: ModelConfig, itemsize: int) -> int:
    """What a step reads of the weights: the layers' matrices and the head."""
    return (matrix_parameters(config) + config.vocab_size * config.hidden_size) * itemsize


def kv_bytes(config: ModelConfig, itemsize: int) -> int:
    """Keys and values of one token."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize


def count_launches(runner: ModelRunner, step: ModelInput, scale: Scale) -> int | None:
    """Kernels that a decode step launches, seen in an eager one; ``None`` where the profiler sees none."""
    if scale.dry:
        return 1
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as found:
        runner._eager(step)
        torch.cuda.synchronize()
    # The events of the host's calls are among them.
    kernels = [
        each for each in found.events() if each.device_type == DeviceType.CUDA and "mem" not in each.name[:3].lower()
    ]
    return len(kernels) or None


def device_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median of three: seconds of one ``run`` on the device, from events around ``repeats`` of them."""
    run()
    times = []
    for _ in range(3):
        if torch.cuda.is_available():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(repeats):
                run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / repeats)
        else:
            started = time.perf_counter()
            for _ in range(repeats):
                run()
            times.append((time.perf_counter() - started) / repeats)
    return statistics.median(times)


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _device(scale: Scale) -> torch.device:
    return torch.device("cpu" if scale.dry else "cuda")


def _free() -> None:
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
