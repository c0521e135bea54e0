"""Builds a ``tokenizers`` tokenizer from a GGUF file's metadata (byte-level BPE only).

A GGUF file holds the vocabulary and the merges but only the *name* of the pre-tokenizer; what the names mean is
written in llama.cpp's source (llama-vocab.cpp), and the same splits stand in the models' own tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_CONTROL, _USER_DEFINED = 3, 4
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _digits_then_gpt2() -> Any:
    """SmolLM2: every numeric character by itself, then GPT-2's split."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _split(pattern: str) -> Callable[[], Any]:
    def build() -> Any:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


PRE_TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    "smollm": _digits_then_gpt2,
    "gpt-2": _gpt2,
    "qwen2": _split(_QWEN2_SPLIT),
    "llama-bpe": _split(_LLAMA3_SPLIT),
}


def build_tokenizer(fields: Mapping[str, Callable[[], Any]], where: str) -> Tokenizer:
    """The tokenizer of a GGUF file; ``fields`` maps a metadata key to a function that reads its value.

    Raises:
        ValueError: a vocabulary or pre-tokenizer that is not supported; the message lists what is.
    """

    def value(key: str, default: Any = None) -> Any:
        field = fields.get(f"tokenizer.ggml.{key}")
        return default if field is None else field()

    if value("model") != "gpt2":
        raise ValueError(
            f"{where}: tokenizer {value('model')!r} is not supported, only byte-level BPE (gpt2); give a folder"
        )
    pre = value("pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(f"{where}: pre-tokenizer {pre!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}")
    tokens: list[str] = value("tokens")
    kinds: list[int] = value("token_type", [1] * len(tokens))
    merges = [tuple(merge.split(" ")) for merge in value("merges")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)}, merges=merges, ignore_merges=pre == "llama-bpe"
        )
    )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    tokenizer.add_special_tokens([token for token in added if token.special])
    bos = value("bos_token_id")
    if value("add_bos_token", pre == "llama-bpe") and bos is not None:
        first = tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, bos)]
        )
    return tokenizer
