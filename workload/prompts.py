"""Prompts of an exact number of tokens, as int32 arrays, drawn from a seed.

Prompt i depends on the seed, its own length and i alone, so the same list comes out on every target and for every subset. A
prefix that requests share is one stream that each of them reads from its start: that is what a prefix cache can reuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workload.schema import Spec, parse_tagged
from workload.seeds import PURPOSES

Tokens = NDArray[np.int32]

OWN, SHARED = 0, 1  # the streams of one seed: a request's own tokens, and shared prefixes


class PromptSpec(Spec):
    """What the prompts hold."""

    kind: str


class RandomTokens(PromptSpec):
    """Every token drawn with equal chance from the vocabulary; nothing is shared."""

    kind: Literal["random"]


KINDS: dict[str, type[PromptSpec]] = {"random": RandomTokens}


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
        sequence = np.random.SeedSequence(seed, spawn_key=(PURPOSES["prompts"],))
        self._keys = [int(word) for word in sequence.generate_state(2, np.uint64)]

    def tokens(self, stream: int, index: int, count: int) -> Tokens:
        """The first ``count`` tokens of stream number ``index``: (count,) int32; more of them begin with the fewer."""
        bits = np.random.Philox(key=np.array([self._keys[stream], index], dtype=np.uint64))
        u = np.random.Generator(bits).random(count)
        return self.allowed[(u * len(self.allowed)).astype(np.int64)]


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
) -> list[Tokens]:
    """One int32 array of exactly ``prompt_tokens[i]`` token ids for each request i."""
    parse_prompts(spec)
    source = TokenSource(vocab_size, special_ids, seed)
    return [source.tokens(OWN, i, int(count)) for i, count in enumerate(prompt_tokens)]
