"""LLM: nano-vllm's interface on the real model and on tiny random ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats

import engine.llm as llm_module
from engine import LLM, SamplingParams
from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m-instruct", enforce_eager=True, tensor_parallel_size=1, num_threads=1, num_kv_blocks=256)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    options = {"backend": "torch", "num_threads": 1, "num_kv_blocks": 64, "max_num_seqs": 4}
    return LLM("random:tiny-llama", max_num_batched_tokens=16, **options)


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


def test_chat_prompts_stand_beside_texts_and_token_ids(llm: LLM) -> None:
    message = [{"role": "user", "content": "What is the capital of France?"}]
    prompts = [message, "The capital of France is", llm.tokenizer.encode("1, 2, 3,")]  # type: ignore[union-attr]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    assert ["Paris" in output.text for output in outputs] == [True, True, False]
    assert outputs[0].token_ids == llm.chat(message, GREEDY, use_tqdm=False)[0].token_ids
    assert outputs[2].text.startswith(" 4")


def test_the_progress_bar_counts_what_is_done(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []
    make = llm_module._progress_bar
    monkeypatch.setattr(llm_module, "_progress_bar", lambda total: bars.append(make(total)) or bars[-1])
    tiny.generate([[1, 2], [3, 4], [5]], [replace(GREEDY, n=2), GREEDY, GREEDY])
    tiny.generate([[1, 2]], GREEDY, use_tqdm=False)
    assert [(bar.tasks[0].completed, bar.tasks[0].total) for bar in bars] == [(4, 4)]


def test_a_generate_that_is_interrupted_or_does_not_fit_the_line_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = LLM("random:tiny-llama", backend="torch", num_threads=1, num_kv_blocks=64, max_queue=3, max_num_seqs=2)
    (expected,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match=r"3 requests wait already \(max_queue = 3\)"):
        llm.generate([[1, 2, 3]] * 4, GREEDY, use_tqdm=False)
    assert llm.is_finished()
    assert llm.core.counters()["refused"] == 1

    def interrupt(*_: object) -> None:
        if llm.core.scheduler.num_steps % 5 == 4:
            raise KeyboardInterrupt

    execute = llm.core.executor.execute
    monkeypatch.setattr(llm.core.executor, "execute", lambda batch: interrupt() or execute(batch))
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1, 2, 3]] * 3, GREEDY, use_tqdm=False)
    monkeypatch.undo()
    assert llm.is_finished()
    assert llm.core.scheduler.block_manager.num_used_blocks == 0
    (again,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    assert again.token_ids == expected.token_ids


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
        (
            [1.7, 2],
            GREEDY,
            r"a prompt is \[1.7, 2\]; it must be a text, a list of token ids or a list of chat messages",
        ),
        (3, GREEDY, "a prompt is 3; it must be"),
        ([{"role": "user", "content": "Hi"}], GREEDY, "no tokenizer"),
        ([1, 2], ["greedy"], r"sampling_params has 'greedy'; give SamplingParams"),
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
        LLM("random:tiny-llama", tensor_parallel_size=3)


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


def eos_of(llm: LLM, count: int = 2) -> frozenset[int]:
    """The ids of greedy outputs as ends, so that outputs end all the time."""
    (output,) = llm.generate([[1, 2, 3]], replace(GREEDY, repetition_penalty=1.5), use_tqdm=False)
    return frozenset(list(dict.fromkeys(output.token_ids))[:count])


def test_each_of_several_ends_ends_and_min_tokens_bars_them_all(monkeypatch: pytest.MonkeyPatch, tiny: LLM) -> None:
    ends = eos_of(tiny)
    monkeypatch.setattr(tiny.core, "eos_token_ids", ends)
    plain = SamplingParams(temperature=0.0, max_tokens=12, repetition_penalty=1.5)
    (ended,) = tiny.generate([[1, 2, 3]], plain, use_tqdm=False)
    assert (len(ended.token_ids), ended.finish_reason) == (1, "stop")
    (second,) = tiny.generate([[1, 2, 3, ended.token_ids[0]]], plain, use_tqdm=False)
    assert set(second.token_ids) <= ends
    for ignore_eos in (False, True):
        longer = replace(plain, min_tokens=9, ignore_eos=ignore_eos, stop_token_ids=(77,))
        (output,) = tiny.generate([[1, 2, 3]], longer, use_tqdm=False)
        assert len(output.token_ids) >= 9
        assert not (ends | {77}) & set(output.token_ids[:9])


def test_log_probabilities_are_the_models_own_whatever_is_sampled(tiny: LLM) -> None:
    prompt = [5, 6, 7, 8]
    odd = SamplingParams(temperature=3.0, top_k=50, seed=4, max_tokens=6, frequency_penalty=1.0, ignore_eos=True)
    sampled, plain = tiny.generate([prompt, prompt], [replace(odd, logprobs=3), odd], use_tqdm=False)
    assert plain.logprobs is None
    assert sampled.logprobs is not None
    assert sampled.token_ids == plain.token_ids, "asking changed the tokens"
    for i, (token, found) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
        greedy = SamplingParams(temperature=0.0, max_tokens=1, logprobs=tiny.info.vocab_size)
        (teacher,) = tiny.generate([prompt + sampled.token_ids[:i]], greedy, use_tqdm=False)
        assert teacher.logprobs is not None
        every = teacher.logprobs[0]
        assert sum(math.exp(value) for value in every.values()) == pytest.approx(1.0)
        assert next(iter(found)) == token
        best = list(every)[:3]
        assert list(found) == [token, *(i for i in best if i != token)]
        assert found == pytest.approx({i: every[i] for i in found}, abs=1e-5)


def test_log_probabilities_survive_preemption() -> None:
    small, large = (
        LLM("random:tiny-llama", attention="reference", num_threads=1, block_size=4, num_kv_blocks=blocks)
        for blocks in (14, 64)
    )
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=20, ignore_eos=True, logprobs=2)
    prompts = [list(range(i, i + 8)) for i in range(1, 5)]
    tight = small.generate(prompts, params, use_tqdm=False)
    assert any(output.stats.preemptions for output in tight)
    roomy = large.generate(prompts, params, use_tqdm=False)
    assert [(o.token_ids, o.logprobs) for o in tight] == [(o.token_ids, o.logprobs) for o in roomy]


def test_n_samples_differ_and_the_first_is_what_one_gives(tiny: LLM) -> None:
    params = SamplingParams(seed=11, max_tokens=8, ignore_eos=True)
    prompts = [list(range(1, 40)), [3, 4, 5]]
    alone = tiny.generate(prompts, params, use_tqdm=False)
    first, second = tiny.generate(prompts, [replace(params, n=5), params], use_tqdm=False)
    assert first.samples[0] is first
    assert [sample.request_id.rpartition("/")[2] for sample in first.samples] == list("01234")
    assert len({tuple(sample.token_ids) for sample in first.samples}) == 5
    assert first.token_ids == alone[0].token_ids
    assert (second.token_ids, second.samples) == (alone[1].token_ids, (second,))
    assert first.samples[4].stats.cached_tokens >= 32, "the prompt's blocks were not shared"
    again = tiny.generate(prompts[:1], replace(params, n=5), use_tqdm=False)[0]
    assert [sample.token_ids for sample in again.samples] == [sample.token_ids for sample in first.samples]


def test_samples_follow_the_models_distribution() -> None:
    """First tokens of 600 samples against the log-probabilities of the same prompt, by chi-square."""
    llm = LLM("random:tiny-llama", backend="torch", num_threads=1, max_num_seqs=128, num_kv_blocks=256)
    count, kept = 600, 12
    greedy = SamplingParams(temperature=0.0, max_tokens=1, logprobs=kept)
    (teacher,) = llm.generate([[9, 8, 7]], greedy, use_tqdm=False)
    assert teacher.logprobs is not None
    weights = {i: math.exp(value) for i, value in teacher.logprobs[0].items()}
    params = SamplingParams(top_k=kept, seed=5, max_tokens=1, n=count)
    (output,) = llm.generate([[9, 8, 7]], params, use_tqdm=False)
    drawn = [sample.token_ids[0] for sample in output.samples]
    assert set(drawn) <= set(weights)
    expected = [count * weight / sum(weights.values()) for weight in weights.values()]
    assert stats.chisquare([drawn.count(i) for i in weights], expected).pvalue > 1e-4


def test_aborting_a_request_ends_its_samples_and_aborting_one_sample_ends_that(tiny: LLM) -> None:
    free = tiny.core.scheduler.block_manager.num_free_blocks
    params = SamplingParams(max_tokens=30, ignore_eos=True, n=3)
    tiny.add_request([1, 2, 3], params, request_id="many")
    with pytest.raises(ValueError, match="live already"):
        tiny.add_request([1, 2, 3], params, request_id="many")
    assert {output.request_id for output in tiny.step()} == {"many/0", "many/1", "many/2"}
    tiny.abort("many/1")
    ended = {output.request_id: output.finish_reason for output in tiny.step()}
    assert ended == {"many/0": None, "many/1": "aborted", "many/2": None}
    with pytest.raises(ValueError, match="live already"):
        tiny.add_request([1, 2, 3], params, request_id="many")
    tiny.abort("many")
    ended = {output.request_id: output.finish_reason for output in tiny.step()}
    assert ended == {"many/0": "aborted", "many/2": "aborted"}
    assert tiny.is_finished()
    assert tiny.core.scheduler.block_manager.num_free_blocks == free
    assert tiny.add_request([1, 2, 3], replace(params, max_tokens=1), request_id="many") == "many"
    assert len(tiny.step()) == 3


def test_samples_that_do_not_all_fit_in_the_line_leave_nothing_behind() -> None:
    llm = LLM("random:tiny-llama", backend="torch", num_threads=1, num_kv_blocks=64, max_queue=2)
    with pytest.raises(ValueError, match="max_queue"):
        llm.add_request([1, 2], SamplingParams(n=3), request_id="many")
    assert llm.is_finished()
    llm.add_request([1, 2], SamplingParams(n=2, max_tokens=1), request_id="many")
    assert [output.finish_reason for output in llm.step()] == ["length"] * 2


def test_log_probabilities_of_an_executor_without_a_model_are_refused() -> None:
    llm = LLM(executor="emulated", step_time={"base_s": 1e-4}, num_kv_blocks=64)
    with pytest.raises(ValueError, match="logprobs = 1; EmulatedExecutor has no probabilities"):
        llm.add_request([1, 2], SamplingParams(logprobs=1))
    with pytest.raises(ValueError, match="executor: emulated has no tokenizer: give prompts as token ids"):
        llm.generate(["text"], use_tqdm=False)


@pytest.mark.parametrize(("attention", "caching"), [("sdpa", True), ("reference", True), ("sdpa", False)])
def test_equal_prompts_of_one_step_compute_their_full_blocks_once(attention: str, caching: bool) -> None:
    """40 tokens are two blocks of 16 and a rest; both are admitted in the first step, and say the same."""
    llm = LLM(
        "random:tiny-llama",
        attention=attention,
        num_threads=1,
        block_size=16,
        num_kv_blocks=16,
        max_num_batched_tokens=128,
        enable_prefix_caching=caching,
    )
    prompt = [(7 * i) % 500 for i in range(40)]
    for name in ("first", "second"):
        llm.add_request(prompt, GREEDY, request_id=name)
    first, second = llm.step()
    assert first.stats.scheduled_s == second.stats.scheduled_s
    assert (first.stats.cached_tokens, second.stats.cached_tokens) == (0, 32 if caching else 0)
    assert llm.core.scheduler.block_manager.num_used_blocks == (4 if caching else 6)
    finished = {}
    while not llm.is_finished():
        finished |= {output.request_id: output.token_ids for output in llm.step() if output.finished}
    assert finished["first"] == finished["second"]
    (alone,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert alone.token_ids == finished["first"]


def test_ends_that_leave_no_token_are_refused_before_anything_runs(tiny: LLM) -> None:
    barred = SamplingParams(min_tokens=1, stop_token_ids=tuple(range(tiny.info.vocab_size)))
    with pytest.raises(ValueError, match="each of the 512 tokens ends an output"):
        tiny.generate([[1, 2, 3], [4, 5]], [GREEDY, barred], use_tqdm=False)
    assert tiny.is_finished()
