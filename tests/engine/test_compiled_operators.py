"""``operators: compile``: the plain operators through torch.compile give what they give eagerly."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, SamplingParams
from engine.layers.operators import CompiledOperators, Operators

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_compiled_operators_equal_the_eager_ones(dtype: torch.dtype) -> None:
    """Over several row counts, one of them 1, which torch.compile takes for a constant."""
    eager, compiled = Operators(), CompiledOperators()
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    weight, head_weight = random(48), random(16)
    for rows in (5, 1, 9):
        x, residual, qkv, gate_up = random(rows, 48), random(rows, 48), random(rows, 8, 16), random(rows, 64)
        rotation = random(rows, 1, 16), random(rows, 1, 16)
        calls = {
            "rms_norm": (x, weight, 1e-6),
            "add_rms_norm": (x, residual, weight, 1e-6),
            "rotate_heads": (qkv, rotation, 4, 2),
            "normalize_and_rotate_heads": (qkv, head_weight, head_weight, 1e-6, rotation, 4, 2),
            "silu_and_mul": (gate_up,),
        }
        for name, arguments in calls.items():
            with torch.inference_mode():
                got, expected = (getattr(each, name)(*arguments) for each in (compiled, eager))
            torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["random:tiny-llama", "random:tiny-qwen3"])
def test_an_engine_on_compiled_operators_gives_the_tokens_of_a_plain_one(model: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[1, 2, 3], [7, 300, 11] * 6, [9]]
    plain, compiled = (
        [
            output.token_ids
            for output in LLM(
                model, backend="torch", device="cpu", operators=operators, num_threads=1, num_kv_blocks=32
            ).generate(prompts, params, use_tqdm=False)
        ]
        for operators in ("torch", "compile")
    )
    assert compiled == plain
