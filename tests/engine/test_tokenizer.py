"""Chat prompts against transformers, growing text against the whole decoded at once. Ids: test_tokenizer_ids.py."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.tokenizer import IncrementalDetokenizer, Tokenizer
from engine.weights.presets import read_chat_template, resolve_tokenizer
from tests.engine.strings import varied_strings

PRESET = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_model(PRESET)


@pytest.fixture(scope="module")
def theirs() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(resolve_tokenizer(PRESET)), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )


# The model's vocabulary has no token for these bytes, so that its tokenizer (also on the hub) drops what needs them; nor
# for the first byte of planes 4 to 11, which hold no letters.
NO_TOKEN = re.compile("[\x04\x06\x13\x14\x16\x1d]")
NO_LETTERS = re.compile("[\U00040000-\U000bffff]")


def writable_strings(count: int) -> list[str]:
    return [NO_LETTERS.sub("", text) for text in varied_strings(count)]


def test_every_string_comes_back_but_for_the_bytes_that_the_vocabulary_lacks(tokenizer: Tokenizer) -> None:
    assert [byte for byte in range(128) if not tokenizer.encode(chr(byte))] == [
        ord(c) for c in "\x04\x06\x13\x14\x16\x1d"
    ]
    for text in writable_strings(500):
        assert tokenizer.decode(tokenizer.encode(text)) == NO_TOKEN.sub("", text)


def test_control_tokens_are_one_id_each_and_leave_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert set(ids) & set(tokenizer.special_token_ids) == {1, 2}
    assert tokenizer.decode(ids) == "user\nHi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hello"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?  \n"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    ],
)
def test_chat_prompts_equal_transformers(
    tokenizer: Tokenizer, theirs: PreTrainedTokenizerFast, messages: list[dict[str, Any]]
) -> None:
    template = read_chat_template(PRESET)
    for prompt in (True, False):
        expected = theirs.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=prompt, tokenize=False
        )
        assert tokenizer.render_chat(messages, prompt) == expected
        assert tokenizer.encode_chat(messages, prompt) == theirs(expected, add_special_tokens=False)["input_ids"]


def test_missing_and_refusing_chat_templates_are_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer.from_file(resolve_tokenizer(PRESET)).render_chat([{"role": "user", "content": "x"}])
    strict = Tokenizer(tokenizer._backend, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        strict.render_chat([])


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    growing = IncrementalDetokenizer(tokenizer)
    return [*(growing.append(i) for i in ids), growing.flush()]


def test_growing_text_of_real_strings_never_splits_a_character(tokenizer: Tokenizer) -> None:
    for text in writable_strings(400):
        pieces = pieces_of(tokenizer, tokenizer.encode(text))
        assert "".join(pieces) == NO_TOKEN.sub("", text)
        assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ids=st.lists(st.one_of(st.integers(0, 400), st.integers(0, 49_151)), max_size=40))
def test_growing_text_of_any_tokens_joins_to_the_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_an_emoji_comes_with_its_last_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f9a5")
    assert len(ids) > 1
    assert pieces_of(tokenizer, ids) == [""] * (len(ids) - 1) + ["\U0001f9a5", ""]
    assert re.fullmatch("\ufffd+", "".join(pieces_of(tokenizer, ids[:-1])))
