"""Reported against nano-vllm (89, PR 216): a batch size that is none of those prepared is padded, and the padded rows write
over somebody's keys and values. Every size from 1 to the number of seats gives each request the tokens that it gets alone."""

from __future__ import annotations

from typing import Any

import pytest

from engine import LLM, SamplingParams

SEATS = 17  # one more than a tile of the native step has rows
OPTIONS: dict[str, dict[str, Any]] = {
    "reference": {"attention": "reference", "block_size": 4},
    "sdpa": {"attention": "sdpa", "block_size": 4},
    "native": {"backend": "native"},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("caching", [True, False])
def test_every_batch_size_gives_each_request_its_own_tokens(name: str, caching: bool) -> None:
    options = {"num_threads": 1, "num_kv_blocks": 256, "max_num_seqs": SEATS, "enable_prefix_caching": caching}
    llm = LLM("random:tiny-llama", **options, **OPTIONS[name])
    prompts = [[(31 * i + 7 * j) % 500 for j in range(1 + i % 5)] for i in range(SEATS)]
    params = [SamplingParams(temperature=float(i % 2), seed=i, max_tokens=6, ignore_eos=True) for i in range(SEATS)]
    alone = [llm.generate([prompts[i]], params[i], use_tqdm=False)[0].token_ids for i in range(SEATS)]
    for size in range(1, SEATS + 1):
        outputs = llm.generate(prompts[:size], params[:size], use_tqdm=False)
        assert [output.token_ids for output in outputs] == alone[:size], f"{size} sequences"
