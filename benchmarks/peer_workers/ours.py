"""Latency Lab's engine through its ``LLM``: the loop that ``LLM.generate`` is, with the time of every step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from worker import Generate, Stepped, serve

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

    def generate(prompts: list[list[int]], new_tokens: list[int], stepped: Stepped) -> list[list[int]]:
        names = {
            llm.add_request(ids, SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)): i
            for i, (ids, count) in enumerate(zip(prompts, new_tokens, strict=True))
        }
        made: list[list[int]] = [[] for _ in prompts]
        while not llm.is_finished():
            for output in llm.step():
                made[names[output.request_id]] = output.token_ids
            stepped([len(each) for each in made])
        return made

    return generate, {"processor path": str(llm.info.fingerprints["execution"])}


if __name__ == "__main__":
    serve(start)
