"""An engine on Triton's kernels in the interpreter, its decodes on the static buffers of the graphs: same tokens as sdpa.

Run with TRITON_INTERPRET=1: ``python -m tests.engine.interpreted_engine``.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.executors.device import DeviceExecutor, LocalRunner
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from tests.engine.device_engine import device_core

PROMPTS = [[1, 2, 3], [7, 300, 11] * 6, [9, 8]]


def generate(model: str, **options: object) -> dict[str, list[int]]:
    """Tokens of every prompt from a core around the device executor."""
    config = EngineConfig(
        model=model, backend="torch", device="cpu", num_threads=1, num_kv_blocks=64, max_num_seqs=3,
        max_num_batched_tokens=16, max_model_len=64, **options,
    )  # fmt: skip
    core = device_core(config)
    assert isinstance(core.executor, DeviceExecutor)
    assert isinstance(core.executor.runner, LocalRunner)
    captures = config.attention == "triton" and not config.enforce_eager
    assert (core.executor.runner.runner.graphs is not None) == captures
    draws = [SamplingParams(temperature=t, max_tokens=5, ignore_eos=True, seed=3) for t in (0.0, 1.0, 0.0)]
    seqs = [core.add(Request(str(i), prompt, draws[i])) for i, prompt in enumerate(PROMPTS)]
    while core.has_work:
        core.step()
    return {seq.request_id: seq.token_ids for seq in seqs}


if __name__ == "__main__":
    for model in ("random:tiny-qwen3", "random:tiny-llama"):
        expected = generate(model, attention="sdpa", operators="torch")
        for eager in (False, True):
            assert generate(model, attention="triton", operators="triton", enforce_eager=eager) == expected
    print("same tokens")
