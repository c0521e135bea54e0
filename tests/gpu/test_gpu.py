"""What needs a CUDA device: the kernels themselves, graphs, the cache's size, draws, NCCL. ``pytest -m gpu``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from engine import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
MODEL = "random:tiny-qwen3"
OPTIONS = {"max_num_seqs": 20, "max_num_batched_tokens": 64, "num_kv_blocks": 256, "max_model_len": 256}
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
PROMPTS = [[(7 * i + k) % 500 for k in range(1 + 5 * i)] for i in range(20)]
TIE = 2e-2


def shapes() -> list[object]:
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return []
    from tests.engine.kernel_cases import ALL, FEW

    return [*FEW, *ALL[::3], *ALL[-21:]]


@pytest.mark.parametrize("shape", shapes(), ids=str)
def test_attention_equals_the_formula(shape: object) -> None:
    from tests.engine.kernel_cases import check

    check(shape)  # type: ignore[arg-type]


def test_padding_rows_write_nowhere_and_give_zeros() -> None:
    from tests.engine import kernel_cases

    for processors in (1, 64):
        kernel_cases.test_padding_rows_write_nowhere_and_give_zeros(processors)


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

    llm = LLM(MODEL, backend="torch", device="cpu", **{**OPTIONS, "block_size": 16})
    checkpoint = load_checkpoint(MODEL, device="cuda")
    llm.core.executor.runner = ModelRunner(checkpoint, 256, 16, 256)  # type: ignore[attr-defined]
    return llm


def check_tokens(cpu: LLM, llm: LLM, prompts: list[list[int]], tie: float) -> None:
    """The same greedy tokens, up to the first step whose two largest logits lie closer than ``tie``."""
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    expected = cpu.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, got, want in zip(prompts, outputs, expected, strict=True):
        if got.token_ids == want.token_ids:
            continue
        step = next(i for i, (a, b) in enumerate(zip(got.token_ids, want.token_ids, strict=True)) if a != b)
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2)
        (again,) = cpu.generate([prompt + want.token_ids[:step]], params, use_tqdm=False)
        assert again.logprobs is not None
        first, second = sorted(again.logprobs[0].values(), reverse=True)[:2]
        assert first - second < tie, f"prompt of {len(prompt)}: another token in step {step}"


@pytest.mark.parametrize("attention", ["triton", "sdpa", "flash_attn"])
@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("operators", ["triton", "torch"])
def test_an_engine_gives_the_tokens_of_the_cpu(cpu: LLM, attention: str, eager: bool, operators: str) -> None:
    if attention == "flash_attn" and find_spec("flash_attn") is None:
        pytest.skip("flash-attn is not installed")
    dtype = "bfloat16" if attention == "flash_attn" else "float32"
    options = {**OPTIONS, "attention": attention, "operators": operators, "dtype": dtype, "enforce_eager": eager}
    llm = LLM(MODEL, device="cuda", **options)
    check_tokens(cpu, llm, PROMPTS, 0.3 if dtype == "bfloat16" else TIE)


def test_every_batch_size_runs_in_a_graph_and_gives_the_eager_tokens() -> None:
    captured, eager = (LLM(MODEL, dtype="float32", enforce_eager=each, **OPTIONS) for each in (False, True))
    graphs = captured.core.executor.runner.runner.graphs  # type: ignore[attr-defined]
    assert graphs is not None
    assert graphs.sizes[-1] == 20
    for count in range(1, 21):
        got, expected = (
            [output.token_ids for output in llm.generate(PROMPTS[:count], GREEDY, use_tqdm=False)]
            for llm in (captured, eager)
        )
        assert got == expected, f"batch of {count}"


def test_draws_do_not_depend_on_the_batch() -> None:
    llm = LLM(MODEL, dtype="float32", **OPTIONS)
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=i, max_tokens=6, ignore_eos=True) for i in range(20)]
    together = [output.token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    alone = [llm.generate([PROMPTS[i]], params[i], use_tqdm=False)[0].token_ids for i in range(20)]
    assert (
        sum(a == b for a, b in zip(together, alone, strict=True)) >= 19
    )  # a draw may fall within rounding of a border


def test_the_cache_takes_the_share_of_memory_that_it_may() -> None:
    options = {**OPTIONS, "num_kv_blocks": None, "gpu_memory_utilization": 0.5}
    llm = LLM(MODEL, **options)
    free, total = torch.cuda.mem_get_info()
    assert 0.40 * total <= total - free <= 0.60 * total
    assert llm.generate([PROMPTS[5]], GREEDY, use_tqdm=False)[0].finish_reason == "length"


@pytest.fixture
def nccl() -> Iterator[LLM]:
    """A tensor-parallel engine of a single rank: process, channel, NCCL and captured collectives on one GPU."""
    from engine.config import EngineConfig
    from engine.executors.device import DeviceExecutor, resolve_settings
    from engine.parallel_runner import TensorParallelRunner
    from engine.weights.checkpoint import load_checkpoint

    llm = LLM(MODEL, dtype="float32", **OPTIONS)
    config = EngineConfig.from_options(model=MODEL, dtype="float32", block_size=llm.info.block_size, **OPTIONS)
    checkpoint = load_checkpoint(MODEL, device="cuda")
    runner = TensorParallelRunner(checkpoint.config, config, resolve_settings(checkpoint, config, "cuda", 2))
    llm.core.executor = DeviceExecutor(runner)
    yield llm
    runner.close()


def test_a_rank_in_a_process_of_its_own_gives_the_same_tokens(cpu: LLM, nccl: LLM) -> None:
    check_tokens(cpu, nccl, PROMPTS[:6], TIE)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two ranks over NCCL want two GPUs")
def test_two_ranks_give_the_same_tokens(cpu: LLM) -> None:
    llm = LLM(MODEL, dtype="float32", tensor_parallel_size=2, **OPTIONS)
    check_tokens(cpu, llm, PROMPTS, TIE)
    llm.core.executor.runner.close()  # type: ignore[attr-defined]
