"""Token ids against transformers, which computes them in three other ways. The preset's tokenizer is built from a GGUF file,
which holds vocabulary and merges and only the name of the pre-tokenizer.

* transformers' own ids of the tokenizer on the hub: llama.cpp recognises a tokenizer by a hash of what transformers'
  ``AutoTokenizer`` makes of a text with every difficulty; it keeps that hash for SmolLM (convert_hf_to_gguf.py).
* transformers' ``GPT2Tokenizer``, the class that the hub's tokenizer_config.json of SmolLM2 names, on 2,000 strings. Its
  pre-tokenizer lacks the split of digits that the hub's tokenizer.json has before GPT-2's pattern: it gets the parts between
  the digits, and each digit by itself.
* byte-pair merging in Python, which transformers still has in ``ClvpTokenizer``, for the same strings.

transformers' conversion of GGUF files (``gguf_file=``) is no answer for digits: it gives ``GPT2Tokenizer`` as it is.
"""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import regex
from tokenizers import Tokenizer as Backend
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode
from transformers.models.clvp.tokenization_clvp import ClvpTokenizer

from engine.tokenizer import Tokenizer
from engine.weights.gguf_tokenizer import build_tokenizer
from engine.weights.presets import resolve_tokenizer
from tests.engine.strings import varied_strings

PRESET = "smollm2-135m-instruct"
STRINGS = varied_strings(2000)


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return Tokenizer.from_model(PRESET)


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """Vocabulary and merges as they stand in the preset's file."""
    parts: dict[str, Any] = json.loads(resolve_tokenizer(PRESET).read_text(encoding="utf-8"))["model"]
    parts["merges"] = [tuple(merge) for merge in parts["merges"]]
    return parts


def test_the_strings_have_every_byte_that_text_can_have() -> None:
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}  # in no UTF-8
    assert set("".join(STRINGS).encode()) == set(range(256)) - never
    assert len(set(STRINGS)) > 0.95 * len(STRINGS)


def test_ids_of_the_recognition_text_are_those_of_the_hubs_tokenizer(ours: Tokenizer) -> None:
    emoji = "🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ 🦙🦙"
    spaces = "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n"
    numbers = "3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3"
    scripts = "កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български"
    signs = "''''''```````\"\"\"\"......!!!!!!??????"
    english = "I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
    ids = ours.encode(f"{spaces}{emoji} {numbers} {scripts} {signs} {english}")
    known = "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249"
    assert sha256(str(ids).encode()).hexdigest() == known


def test_ids_equal_transformers_gpt2_class_between_the_digits(ours: Tokenizer, model: dict[str, Any]) -> None:
    theirs = GPT2Tokenizer(vocab=model["vocab"], merges=model["merges"])
    for text in STRINGS:
        parts = [part for part in regex.split(r"(\p{N})", text) if part]
        assert ours.encode(text) == list(chain(*theirs(parts)["input_ids"])), text
    assert ours.encode("x  1") != theirs("x  1")["input_ids"], "the digits' split is not in the class"


def test_ids_equal_byte_pair_merging_in_python(ours: Tokenizer, model: dict[str, Any]) -> None:
    vocabulary, letter_of = model["vocab"], bytes_to_unicode()
    merger = SimpleNamespace(cache={}, bpe_ranks={pair: rank for rank, pair in enumerate(model["merges"])})
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for text in STRINGS:
        expected = []
        for piece in (piece for part in regex.split(r"(\p{N})", text) for piece in regex.findall(gpt2, part)):
            letters = [letter_of[byte] for byte in piece.encode()]
            known = "".join(letter for letter in letters if letter in vocabulary)  # it lacks a few control characters
            if known:
                expected += [vocabulary[token] for token in ClvpTokenizer.bpe(merger, known).split(" ")]
        assert ours.encode(text) == expected, text


def from_gguf(model: dict[str, Any], pre: str) -> Backend:
    """What a GGUF file with this vocabulary and the pre-tokenizer ``pre`` becomes."""
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    fields = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": [" ".join(merge) for merge in model["merges"]]}
    return build_tokenizer({f"tokenizer.ggml.{key}": lambda value=value: value for key, value in fields.items()}, pre)


@pytest.mark.parametrize("pre", ["qwen2", "gpt-2"])
def test_other_pre_tokenizers_give_the_ids_of_transformers_classes(model: dict[str, Any], pre: str) -> None:
    kind = {"qwen2": Qwen2Tokenizer, "gpt-2": GPT2Tokenizer}[pre]
    theirs, ours = kind(vocab=model["vocab"], merges=model["merges"]), from_gguf(model, pre)
    for text in STRINGS[:1000]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text


def test_llama_3s_splits_are_those_of_transformers_converter(model: dict[str, Any]) -> None:
    """Splits only: the converter wants Meta's own file for the rest."""
    ours = from_gguf(model, "llama-bpe")
    pattern = TikTokenConverter().pattern
    for text in STRINGS[:500]:
        pieces = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(text)]
        letter_of = bytes_to_unicode()
        expected = ["".join(letter_of[byte] for byte in piece.encode()) for piece in regex.findall(pattern, text)]
        assert pieces == expected, text
