"""Latency Lab's engine through ``LLM.generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from worker import Generate, serve

sys.path.insert(0, str(Path(__file__).parents[2]))


def start(options: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """``options``: model, threads, seats, budget, max_len, and ``engine`` (further options of ``EngineConfig``)."""
    from engine import LLM, SamplingParams

    llm = LLM(
        options["model"],
        num_threads=options["threads"],
        max_num_seqs=options["seats"],
        max_num_batched_tokens=options["budget"],
        max_model_len=options["max_len"],
        enable_prefix_caching=False,
        **options.get("engine", {}),
    )

    def generate(prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in new_tokens]
        return [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    return generate, {"processor path": str(llm.info.fingerprints["execution"])}


if __name__ == "__main__":
    serve(start)
