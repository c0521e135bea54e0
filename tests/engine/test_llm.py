"""LLM: nano-vllm's interface on the real model and on tiny random ones."""

from __future__ import annotations

import pytest

from engine import LLM, SamplingParams
from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m-instruct", enforce_eager=True, tensor_parallel_size=1, num_threads=1, num_kv_blocks=256)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("random:tiny-llama", backend="torch", num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=16)


def test_the_model_knows_its_capital(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)
    assert "Paris" in output["text"]
    assert output.finish_reason == "stop"


def test_outputs_come_in_the_order_of_the_prompts_duplicates_included(llm: LLM) -> None:
    prompts = ["1, 2, 3, 4,", "Once upon a time", "1, 2, 3, 4,"]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert outputs[0].token_ids == outputs[2].token_ids != outputs[1].token_ids
    assert outputs[0]["text"].startswith(" 5, 6")
    assert [len(output["token_ids"]) for output in outputs] == [12] * 3


def test_a_second_generate_returns_its_own_requests(llm: LLM) -> None:
    first = llm.generate(["Hello"], GREEDY, use_tqdm=False)
    second = llm.generate(["Good evening"], GREEDY, use_tqdm=False)
    assert first[0].request_id != second[0].request_id
    assert first[0].prompt_token_ids != second[0].prompt_token_ids


def test_deltas_join_to_the_whole_and_stamps_are_there(llm: LLM) -> None:
    name = llm.add_request("The quick brown fox", GREEDY)
    pieces, tokens, last = "", [], None
    while not llm.is_finished():
        for output in llm.step():
            pieces += output.new_text
            tokens += output.new_token_ids
            last = output
    assert last is not None
    assert last.request_id == name
    assert (pieces, tokens) == (last.text, last.token_ids)
    assert last.stats.received_s <= last.stats.scheduled_s <= last.stats.emitted_first_s <= last.stats.done_s


def test_a_stop_string_ends_the_output_and_is_not_in_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop=("9, 10",))
    (output,) = llm.generate(["1, 2, 3, 4,"], params, use_tqdm=False)
    assert output.text == " 5, 6, 7, 8, "
    assert output.finish_reason == "stop"


def test_the_prefix_cache_changes_cached_tokens_and_nothing_else(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("A long story about a small engine that wanted to be measured. " * 4)  # type: ignore[union-attr]
    cold, warm = (llm.generate([prompt], GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert warm.stats.cached_tokens >= 16
    assert warm.stats.cached_tokens > cold.stats.cached_tokens
    assert warm.token_ids == cold.token_ids


def test_more_requests_than_seats_and_prompts_longer_than_the_budget_all_finish(tiny: LLM) -> None:
    prompts = [list(range(1, 2 + 7 * i)) for i in range(10)]
    outputs = tiny.generate(prompts, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True), use_tqdm=False)
    alone = [
        tiny.generate([prompt], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True), use_tqdm=False)[0]
        for prompt in prompts
    ]
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]


def test_an_aborted_request_is_told_and_gives_its_blocks_back(tiny: LLM) -> None:
    free = tiny.core.scheduler.block_manager.num_free_blocks
    name = tiny.add_request([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
    tiny.step()
    tiny.abort(name)
    (output,) = tiny.step()
    assert output.finish_reason == "aborted"
    assert tiny.is_finished()
    assert tiny.core.scheduler.block_manager.num_free_blocks == free


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], GREEDY, "empty prompt"),
        ([1] * 3000, GREEDY, "max_model_len|KV blocks"),
        ([1 << 30], GREEDY, "vocabulary"),
        ("text", GREEDY, "no tokenizer"),
        ([1, 2], [GREEDY, GREEDY], "one each"),
    ],
)
def test_mistakes_are_named_and_nothing_is_left_behind(tiny: LLM, prompt: object, params: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.generate([prompt], params, use_tqdm=False)  # type: ignore[list-item, arg-type]
    assert tiny.is_finished()


def test_two_live_requests_cannot_have_one_id_and_the_first_is_unharmed(tiny: LLM) -> None:
    tiny.add_request([1, 2, 3], GREEDY, request_id="twin")
    with pytest.raises(ValueError, match="live already"):
        tiny.add_request([4, 5], GREEDY, request_id="twin")
    outputs = []
    while not tiny.is_finished():
        outputs += [output for output in tiny.step() if output.finished]
    assert [(output.request_id, len(output.token_ids)) for output in outputs] == [("twin", 12)]


def test_nano_vllms_names_are_accepted_and_unknown_ones_are_not() -> None:
    llm = LLM("random:tiny-llama", backend="torch", kvcache_block_size=8, num_kvcache_blocks=10)
    assert (llm.info.block_size, llm.info.num_kv_blocks) == (8, 10)
    with pytest.raises(ValueError, match="did you mean 'max_num_seqs'"):
        LLM("random:tiny-llama", max_num_seq=4)
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        LLM("random:tiny-llama", tensor_parallel_size=2)


def test_max_tokens_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        SamplingParams(max_tokens=0)


@pytest.mark.parametrize("stop", ["ab", "abc", "c", "é!"])
def test_a_text_stream_gives_no_character_twice_and_none_of_a_stop_string(llm: LLM, stop: str) -> None:
    tokenizer = llm.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    text = "xaba é? é!abc tail"
    stream, given = TextStream(tokenizer, (stop,)), ""
    for token_id in tokenizer.encode(text):
        ended = stream.append(token_id)
        given += stream.take()
        if ended:
            break
    stream.finish()
    given += stream.take()
    assert given == stream.text == text.split(stop)[0]
