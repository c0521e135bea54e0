"""Reported against transformers (45943): a second ``generate`` looks up the ids of the first; and equal prompts in one call
are taken for one request."""

from __future__ import annotations

from engine import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def test_each_call_and_each_duplicate_returns_its_own_in_order() -> None:
    llm = LLM("random:tiny-llama", backend="torch", num_threads=1, num_kv_blocks=64, max_num_seqs=3)
    prompts = [[1, 2, 3], [7, 8], [1, 2, 3], [9], [7, 8], [1, 2, 3]]
    lengths = [6, 2, 3, 1, 5, 4]  # ends in another order than they began
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    alone = {tuple(prompt): llm.generate([prompt], GREEDY, use_tqdm=False)[0].token_ids for prompt in prompts}
    seen = set()
    for order in (range(6), reversed(range(6))):
        picked = list(order)
        outputs = llm.generate([prompts[i] for i in picked], [params[i] for i in picked], use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == [prompts[i] for i in picked]
        assert [output.token_ids for output in outputs] == [alone[tuple(prompts[i])][: lengths[i]] for i in picked]
        seen |= {output.request_id for output in outputs}
    assert len(seen) == 12
