"""What needs a CUDA device: the kernels themselves, graphs, the cache's size, draws, waits, NCCL.

    python -m pytest -m gpu --confcutdir=tests/gpu tests/gpu

needs of the project's packages those of the engine alone; the option leaves out what other tests share.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from engine import LLM, SamplingParams
from engine.transfer import to_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
MODEL = "random:tiny-qwen3"
OPTIONS = {
    "max_num_seqs": 20,
    "max_num_batched_tokens": 64,
    "num_kv_blocks": 256,
    "max_model_len": 256,
    "num_threads": 2,
}
CUDA = {**OPTIONS, "device": "cuda"}
ATTENTIONS = [
    "triton",
    "sdpa",
    pytest.param(
        "flash_attn", marks=pytest.mark.skipif(find_spec("flash_attn") is None, reason="flash-attn is missing")
    ),
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
PROMPTS = [[(7 * i + k) % 500 for k in range(1 + 5 * i)] for i in range(20)]
TIE = 2e-2


def shapes() -> list[object]:
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return []
    from tests.engine.kernel_cases import FEW, ON_A_GPU

    return [*FEW, *ON_A_GPU]


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_attention_equals_the_formula(shape: object) -> None:
    from tests.engine.kernel_cases import check

    check(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [1, 3, 8])
def test_padding_rows_write_nowhere_and_give_zeros(group: int) -> None:
    from tests.engine import kernel_cases

    for processors in (1, 64):
        kernel_cases.check_padding(processors, group, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_fused_operators_equal_the_plain_ones(dtype: torch.dtype) -> None:
    from tests.engine import kernel_cases

    for heads, kv_heads, head_dim in ((9, 3, 64), (4, 1, 80), (32, 8, 128)):
        kernel_cases.test_fused_operators_equal_the_plain_ones(dtype, heads, kv_heads, head_dim)


@pytest.fixture(scope="module")
def cpu() -> LLM:
    """The answer: plain torch on the CPU in float32, with the weights that the GPU draws."""
    from engine.model_runner import ModelRunner
    from engine.weights.checkpoint import load_checkpoint

    llm = LLM(MODEL, backend="torch", device="cpu", block_size=16, **OPTIONS)
    checkpoint = load_checkpoint(MODEL, device="cuda")
    llm.core.executor.runner = ModelRunner(checkpoint, 256, 16, 256)  # type: ignore[attr-defined]
    return llm


def check_tokens(cpu: LLM, llm: LLM, prompts: list[list[int]], tie: float) -> None:
    """The same greedy tokens, up to the first step whose two largest logits lie closer than ``tie``."""
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    expected = cpu.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, got, want in zip(prompts, outputs, expected, strict=True):
        check_tie(cpu, prompt, got.token_ids, want.token_ids, tie)


def check_tie(judge: LLM, prompt: list[int], got: list[int], want: list[int], tie: float) -> None:
    """Two outputs of ``prompt`` differ, if at all, first where ``judge`` sees the two largest logits closer than ``tie``."""
    if got == want:
        return
    step = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
    (again,) = judge.generate([prompt + want[:step]], params, use_tqdm=False)
    assert again.logprobs is not None
    first, second = sorted(again.logprobs[0].values(), reverse=True)[:2]
    assert first - second < tie, f"prompt of {len(prompt)}: another token in step {step}"


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("operators", ["triton", "torch"])
def test_an_engine_gives_the_tokens_of_the_cpu(cpu: LLM, attention: str, eager: bool, operators: str) -> None:
    dtype = "bfloat16" if attention == "flash_attn" else "float32"
    options = {**CUDA, "attention": attention, "operators": operators, "dtype": dtype, "enforce_eager": eager}
    check_tokens(cpu, LLM(MODEL, **options), PROMPTS, 0.3 if dtype == "bfloat16" else TIE)


def test_every_batch_size_runs_in_a_graph_and_gives_the_eager_tokens(cpu: LLM) -> None:
    captured, eager = (LLM(MODEL, dtype="float32", enforce_eager=each, **CUDA) for each in (False, True))
    graphs = captured.core.executor.runner.runner.graphs  # type: ignore[attr-defined]
    assert graphs is not None
    assert graphs.sizes[-1] == 20
    for count in range(1, 21):
        outputs = [llm.generate(PROMPTS[:count], GREEDY, use_tqdm=False) for llm in (captured, eager)]
        for prompt, got, want in zip(PROMPTS, *outputs, strict=False):
            check_tie(cpu, prompt, got.token_ids, want.token_ids, TIE)


def test_draws_do_not_depend_on_the_batch() -> None:
    """Logits do, in their last bits: of 20 requests one may meet a draw within rounding of a border."""
    llm = LLM(MODEL, dtype="float32", **CUDA)
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=i, max_tokens=6, ignore_eos=True) for i in range(20)]
    together = [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    alone = [llm.generate([PROMPTS[i]], params[i], use_tqdm=False)[0].token_ids for i in range(20)]
    assert sum(a == b for a, b in zip(together, alone, strict=True)) >= 19


def test_penalties_and_log_probabilities_are_the_cpus(cpu: LLM) -> None:
    llm = LLM(MODEL, dtype="float32", **CUDA)
    params = SamplingParams(
        temperature=0.0, max_tokens=8, min_tokens=8, repetition_penalty=1.3, frequency_penalty=0.2, logprobs=3
    )
    outputs = [each.generate(PROMPTS[:8], params, use_tqdm=False) for each in (llm, cpu)]
    same = 0
    for got, want in zip(*outputs, strict=True):
        if got.token_ids != want.token_ids:
            continue  # nearly tied somewhere
        same += 1
        for mine, theirs in zip(got.logprobs or [], want.logprobs or [], strict=True):
            assert max(mine.values()) == pytest.approx(max(theirs.values()), abs=5e-3)
    assert same >= 7


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_no_layer_and_no_draw_waits_for_the_device(attention: str) -> None:
    """CUDA's own alarm: an operation that makes the host wait raises. A mixed step, a decode step, the same in a graph."""
    from engine.layers.device_logits import Adjustments, adjusted
    from engine.layers.device_sampler import SamplingInput, sample_on_device
    from tests.engine.test_attention import CASES, step_of

    options = {**CUDA, "num_kv_blocks": 600, "max_model_len": 512, "attention": attention}
    llm = LLM(MODEL, dtype="bfloat16", **options)
    runner = llm.core.executor.runner.runner  # type: ignore[attr-defined]
    params = [SamplingParams(temperature=1.0, top_k=5, top_p=0.9, repetition_penalty=1.2)] * 8
    for case in ("everything at once", "decodes of far lengths"):
        step = step_of(*CASES[case], runner.block_size)
        metadata = runner.attention.prepare(step, runner.block_size, runner.device)
        inputs = to_device((step.token_ids, step.positions, step.logit_rows), runner.device)
        rows = len(step.logit_rows)
        known = [np.arange(5, dtype=np.int32)] * rows
        adjustments = Adjustments.of(params[:rows], known, [1] * rows, [(2,)] * rows, runner.config.vocab_size)
        draws = SamplingInput.of(params[:rows], range(rows), range(rows), adjustments)
        for alarmed in (False, True):  # the first time things are compiled
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if alarmed else "default")
            try:
                with torch.inference_mode():
                    logits = runner.model(*inputs, runner.cache, runner.attention, metadata)
                    if attention != "sdpa":  # its metadata is copied plainly, before the layers
                        logits = runner.logits(step)
                    sample_on_device(adjusted(logits, adjustments), draws)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_pinned_memory_is_not_written_again_before_its_copy_has_ended() -> None:
    device = torch.device("cuda")
    torch.cuda._sleep(200_000_000)  # a tenth of a second: every copy below waits behind it
    copies = [to_device((np.full(5000, i, dtype=np.int32),), device)[0] for i in range(200)]
    assert [int(copy.min()) for copy in copies] == [int(copy.max()) for copy in copies] == list(range(200))


def test_compiled_operators_in_graphs_give_the_tokens_of_the_cpu(cpu: LLM) -> None:
    options = {**CUDA, "max_num_seqs": 4}
    check_tokens(cpu, LLM(MODEL, dtype="float32", operators="compile", **options), PROMPTS[:4], TIE)


def test_the_cache_takes_the_share_of_memory_that_it_may() -> None:
    options = {**CUDA, "num_kv_blocks": None, "gpu_memory_utilization": 0.5}
    llm = LLM(MODEL, **options)
    free, total = torch.cuda.mem_get_info()
    assert 0.40 * total <= total - free <= 0.60 * total
    assert llm.generate([PROMPTS[5]], GREEDY, use_tqdm=False)[0].finish_reason == "length"


@pytest.fixture
def nccl() -> Iterator[LLM]:
    """A tensor-parallel engine of a single rank: process, channel, NCCL's set-up and graphs on one GPU; a lone rank has
    nothing to sum."""
    from engine.config import EngineConfig
    from engine.executors.device import DeviceExecutor, resolve_settings
    from engine.parallel_runner import TensorParallelRunner
    from engine.weights.checkpoint import load_checkpoint

    llm = LLM(MODEL, dtype="float32", **CUDA)
    config = EngineConfig.from_options(model=MODEL, dtype="float32", block_size=llm.info.block_size, **CUDA)
    checkpoint = load_checkpoint(MODEL, device="cuda")
    runner = TensorParallelRunner(checkpoint.config, config, resolve_settings(checkpoint, config, "cuda", 2))
    llm.core.executor = DeviceExecutor(runner)
    yield llm
    runner.close()


def test_a_rank_in_a_process_of_its_own_gives_the_same_tokens(cpu: LLM, nccl: LLM) -> None:
    check_tokens(cpu, nccl, PROMPTS[:6], TIE)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks over NCCL want two GPUs")
def test_two_ranks_give_the_same_tokens(cpu: LLM) -> None:
    llm = LLM(MODEL, dtype="float32", tensor_parallel_size=2, **CUDA)
    check_tokens(cpu, llm, PROMPTS, TIE)
    llm.core.executor.runner.close()  # type: ignore[attr-defined]
