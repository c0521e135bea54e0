"""Prompts of an exact number of tokens, as int32 arrays, drawn from a seed.

Prompt i depends on the seed, its own length and i alone, so the same list comes out on every target and for every subset. A
prefix that requests share is one stream that each of them reads from its start: that is what a prefix cache can reuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Tokenizer

from workload.schema import Count, Spec, Unit, parse_tagged
from workload.seeds import PURPOSES

Tokens = NDArray[np.int32]

OWN, SHARED, CHOICE = 0, 1, 2  # the streams of one seed: a request's own tokens, shared prefixes, which prefix it takes


class TokenSource:
    """Seeded token streams over a vocabulary without its special ids.

    Args:
        vocab_size: size of the vocabulary.
        special_ids: ids that are never drawn (end of sequence, padding and the like).
        seed: of the prompts.
    """

    def __init__(self, vocab_size: int, special_ids: Sequence[int] = (), seed: int = 0) -> None:
        allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(list(special_ids), dtype=np.int32))
        if not len(allowed):
            raise ValueError(f"a vocabulary of {vocab_size} tokens without its {len(special_ids)} special ids is empty")
        self.allowed: Tokens = allowed
        self.vocab_size = vocab_size
        sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES["prompts"],))
        self._keys = [int(word) for word in sequence.generate_state(3, np.uint64)]

    def uniform(self, stream: int, index: int, count: int) -> NDArray[np.float64]:
        """The first ``count`` uniform numbers of stream number ``index``; more of them begin with the fewer."""
        bits = np.random.Philox(key=np.array([self._keys[stream], index], dtype=np.uint64))
        return np.random.Generator(bits).random(count)

    def tokens(self, stream: int, index: int, count: int) -> Tokens:
        """The first ``count`` tokens of stream number ``index``: (count,) int32; more of them begin with the fewer."""
        return self.allowed[(self.uniform(stream, index, count) * len(self.allowed)).astype(np.int64)]


class PromptSpec(Spec):
    """What the prompts hold."""

    kind: str

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        """The ``count`` tokens of request ``index``: (count,) int32."""
        raise NotImplementedError


class RandomTokens(PromptSpec):
    """Every token drawn with equal chance from the vocabulary; nothing is shared."""

    kind: Literal["random"]

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        return source.tokens(OWN, index, count)


class SharedPrefix(PromptSpec):
    """A ``share`` of the requests begin with one of ``groups`` prefixes (a system prompt), picked with equal chance.

    The prefix counts as part of the prompt; one that is longer than the prompt is cut to it.
    """

    kind: Literal["shared_prefix"]
    tokens: Annotated[Count, Field(description="length of each prefix")]
    groups: Annotated[Count, Field(description="number of prefixes")] = 1
    share: Annotated[Unit, Field(description="share of the requests that have a prefix")] = 1.0

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        has, which = source.uniform(CHOICE, index, 2)
        if has >= self.share:
            return source.tokens(OWN, index, count)
        prefix = source.tokens(SHARED, int(which * self.groups), min(self.tokens, count))
        return np.concatenate([prefix, source.tokens(OWN, index, count - len(prefix))])


class PrefixTree(PromptSpec):
    """Prefixes that fork: ``levels`` pieces of ``tokens`` each, at every one of them ``branching`` ways to go on.

    All requests share the first piece, those on the same path the following ones; the rest of the prompt is a request's own.
    """

    kind: Literal["prefix_tree"]
    tokens: Annotated[Count, Field(description="length of each piece")]
    branching: Annotated[Count, Field(description="ways to go on after each piece")]
    levels: Annotated[Count, Field(le=32, description="pieces on the way, at most 32")]

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        ways = (source.uniform(CHOICE, index, self.levels - 1) * self.branching).astype(np.int64)
        node, pieces, left = 0, [], count
        for level in range(self.levels):
            if level:
                node = (
                    node * self.branching + 1 + int(ways[level - 1])
                )  # numbered as in a heap: every node its own stream
            pieces.append(source.tokens(SHARED, node % 2**64, min(self.tokens, left)))
            left -= len(pieces[-1])
        return np.concatenate([*pieces, source.tokens(OWN, index, left)])


class HashIds(PromptSpec):
    """The trace's prefix block ids made into real tokens: equal ids at the start of two prompts are equal tokens.

    Each id stands for ``block`` tokens (512 in Mooncake's traces; give block x scale where lengths are scaled). What a prompt
    has beyond its blocks is its own.
    """

    kind: Literal["hash_ids"]
    block: Annotated[Count, Field(description="tokens of one block")] = 512

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        if hash_ids is None:
            raise ValueError(
                "prompts of kind 'hash_ids' need a trace that has them (format mooncake, or columns: {hash_ids: NAME})"
            )
        pieces, left = [], count
        for block in hash_ids:
            pieces.append(source.tokens(SHARED, int(block), min(self.block, left)))
            left -= len(pieces[-1])
            if not left:
                break
        return np.concatenate([*pieces, source.tokens(OWN, index, left)])


class TextFile(PromptSpec):
    """Running text: each prompt a stretch of the file's tokens from a random place on (the file read in a circle)."""

    kind: Literal["text"]
    path: Annotated[str, Field(description="a UTF-8 text file")]
    tokenizer: Annotated[str, Field(description="a tokenizer.json (Hugging Face tokenizers)")]

    def prompt(self, source: TokenSource, index: int, count: int, hash_ids: Sequence[int] | None) -> Tokens:
        return self.stretch(self.encoded(source.vocab_size), source, index, count)

    def stretch(self, text: Tokens, source: TokenSource, index: int, count: int) -> Tokens:
        start = int(source.uniform(CHOICE, index, 1)[0] * len(text))
        return text[(start + np.arange(count)) % len(text)]

    def encoded(self, vocab_size: int) -> Tokens:
        """All tokens of the file, without special tokens around them."""
        for path in (self.path, self.tokenizer):
            if not Path(path).is_file():
                raise ValueError(f"{path}: no such file")
        text = Path(self.path).read_text(encoding="utf-8")
        ids = np.array(Tokenizer.from_file(self.tokenizer).encode(text, add_special_tokens=False).ids, dtype=np.int32)
        if not len(ids):
            raise ValueError(f"{self.path}: the text has no tokens")
        if ids.max() >= vocab_size:
            raise ValueError(
                f"{self.tokenizer}: token {ids.max()} is outside the model's vocabulary of {vocab_size}; "
                "the model's own tokenizer is needed"
            )
        return ids


KINDS: dict[str, type[PromptSpec]] = {
    "random": RandomTokens,
    "shared_prefix": SharedPrefix,
    "prefix_tree": PrefixTree,
    "hash_ids": HashIds,
    "text": TextFile,
}


def parse_prompts(data: PromptSpec | Mapping[str, Any]) -> PromptSpec:
    """The typed model of ``{"kind": ..., ...}``.

    Raises:
        SpecError: (a ValueError) naming the key, what was found and what is allowed.
    """
    return parse_tagged(KINDS, "kind", data)


def draw_prompts(
    spec: PromptSpec | Mapping[str, Any],
    prompt_tokens: Sequence[int] | NDArray[np.int64],
    vocab_size: int,
    seed: int,
    special_ids: Sequence[int] = (),
    hash_ids: Sequence[Sequence[int]] | NDArray[np.object_] | None = None,
) -> list[Tokens]:
    """One int32 array of exactly ``prompt_tokens[i]`` token ids for each request i.

    Args:
        hash_ids: prefix block ids of each request, for prompts of kind ``hash_ids``.

    Raises:
        ValueError: hash ids are needed and not there, or a file can't be used.
    """
    parsed = parse_prompts(spec)
    source = TokenSource(vocab_size, special_ids, seed)
    counts = [int(count) for count in prompt_tokens]
    if isinstance(parsed, TextFile):
        text = parsed.encoded(vocab_size)
        return [parsed.stretch(text, source, i, count) for i, count in enumerate(counts)]
    return [
        parsed.prompt(source, i, count, None if hash_ids is None else hash_ids[i]) for i, count in enumerate(counts)
    ]
