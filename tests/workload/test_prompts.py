"""Prompts have exactly the tokens asked for, the same for the same seed, and share what they say they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from workload.prompts import draw_prompts

VOCABULARY = 1000
LENGTHS = [1, 5, 40, 200, 17, 64] * 50


def common(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if different.size else n


KINDS: list[dict[str, Any]] = [
    {"kind": "random"},
    {"kind": "shared_prefix", "tokens": 30, "groups": 3, "share": 0.5},
    {"kind": "prefix_tree", "tokens": 10, "branching": 2, "levels": 3},
    {"kind": "hash_ids", "block": 16},
]
HASHES = [[0, 1 + i % 3, 100 + i] for i in range(len(LENGTHS))]


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec["kind"])
def test_counts_are_exact_special_ids_absent_and_seeds_decide(spec: dict[str, Any]) -> None:
    prompts = draw_prompts(spec, LENGTHS, VOCABULARY, 7, special_ids=(0, 1, 999), hash_ids=HASHES)
    assert [len(prompt) for prompt in prompts] == LENGTHS
    assert all(prompt.dtype == np.int32 for prompt in prompts)
    tokens = np.concatenate(prompts)
    assert not np.isin(tokens, (0, 1, 999)).any()
    assert tokens.min() >= 2
    assert tokens.max() <= 998
    again = draw_prompts(spec, LENGTHS[:20], VOCABULARY, 7, special_ids=(0, 1, 999), hash_ids=HASHES)
    assert all(np.array_equal(one, other) for one, other in zip(prompts[:20], again, strict=True))
    other = draw_prompts(spec, LENGTHS[:20], VOCABULARY, 8, special_ids=(0, 1, 999), hash_ids=HASHES)
    assert not np.array_equal(prompts[3], other[3])


def test_random_tokens_are_uniform_and_unrelated() -> None:
    prompts = draw_prompts({"kind": "random"}, [500] * 200, 100, 3)
    assert stats.chisquare(np.bincount(np.concatenate(prompts), minlength=100)).pvalue > 0.001
    assert max(common(prompts[0], other) for other in prompts[1:]) < 5


def test_a_share_of_the_prompts_begins_with_one_of_the_prefixes() -> None:
    spec = {"kind": "shared_prefix", "tokens": 30, "groups": 3, "share": 0.5}
    prompts = draw_prompts(spec, [50] * 2000, VOCABULARY, 7)
    prefixes = {tuple(prompt[:30]): 0 for prompt in prompts}
    for prompt in prompts:
        prefixes[tuple(prompt[:30])] += 1
    groups = [count for count in prefixes.values() if count > 1]
    assert len(groups) == 3
    assert stats.binomtest(sum(groups), 2000, 0.5).pvalue > 0.001
    assert stats.chisquare(groups).pvalue > 0.001
    same = [prompt for prompt in prompts if tuple(prompt[:30]) == tuple(prompts[0][:30])]
    assert all(common(prompts[0], other) < 35 for other in same if other is not prompts[0])


def test_a_tree_forks_at_its_levels_only() -> None:
    spec = {"kind": "prefix_tree", "tokens": 10, "branching": 2, "levels": 3}
    prompts = draw_prompts(spec, [60] * 100, VOCABULARY, 7)
    depths = {common(prompts[0], other) // 10 * 10 for other in prompts[1:]}
    assert depths == {10, 20, 30}
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 4
    assert len({tuple(prompt[:10]) for prompt in prompts}) == 1


def test_equal_hash_ids_are_equal_tokens_and_the_rest_is_own() -> None:
    hashes = [[0, 1, 2], [0, 1, 3], [0, 4], [9]]
    prompts = draw_prompts({"kind": "hash_ids", "block": 16}, [45, 48, 40, 16], VOCABULARY, 7, hash_ids=hashes)
    assert common(prompts[0], prompts[1]) == 32
    assert common(prompts[0], prompts[2]) == 16
    assert common(prompts[0], prompts[3]) < 3
    with pytest.raises(ValueError, match="need a trace"):
        draw_prompts({"kind": "hash_ids"}, [4], VOCABULARY, 7)


def test_text_prompts_are_stretches_of_the_file(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(50)]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(" ".join(words))
    spec = {"kind": "text", "path": str(tmp_path / "text.txt"), "tokenizer": str(tmp_path / "tokenizer.json")}
    prompts = draw_prompts(spec, [20, 120, 1], 50, 5)
    assert [len(prompt) for prompt in prompts] == [20, 120, 1]
    assert all((np.diff(prompt) % 50 == 1).all() for prompt in prompts)  # consecutive words, the file in a circle
    with pytest.raises(ValueError, match="outside the model's vocabulary of 10"):
        draw_prompts(spec, [3], 10, 5)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="is empty"):
        draw_prompts({"kind": "random"}, [3], 2, 0, special_ids=(0, 1))
