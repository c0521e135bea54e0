"""vLLM's CPU build through its ``LLM.generate``, in the process itself (its own engine process would need a core more)."""

from __future__ import annotations

import os
from typing import Any

from worker import Generate, serve


def start(options: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """``options``: folder (a Hugging Face folder), threads, seats, budget, max_len."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import vllm

    llm = vllm.LLM(
        model=options["folder"],
        dtype="bfloat16",
        max_model_len=options["max_len"],
        max_num_seqs=options["seats"],
        max_num_batched_tokens=options["budget"],
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        params = [
            vllm.SamplingParams(temperature=0.0, min_tokens=count, max_tokens=count, ignore_eos=True, detokenize=False)
            for count in new_tokens
        ]
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate, {"vllm": vllm.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(start)
