"""The block manager by hand calculation: sharing, eviction order, counts. Random schedules are in test_kv_shadow.py."""

from __future__ import annotations

import pytest

from engine.block_manager import BlockManager
from engine.sequence import Sequence
from tests.engine.shadow import make_request


def _sequence(tokens: str, salt: str | None = None) -> Sequence:
    return Sequence.from_request(make_request(tokens, [ord(letter) for letter in tokens], cache_salt=salt))


def _computed(manager: BlockManager, tokens: str, salt: str | None = None) -> Sequence:
    """A sequence admitted and wholly computed."""
    seq = _sequence(tokens, salt)
    assert manager.admit(seq)
    manager.record_computed(seq, seq.num_tokens)
    seq.num_computed_tokens = seq.num_tokens
    return seq


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 1), (1, 0), (-3, 16)])
def test_sizes_below_one_are_refused_with_the_numbers(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=rf"num_blocks = {num_blocks} and block_size = {block_size} must both"):
        BlockManager(num_blocks, block_size)


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_blocks_for_rounds_up(size: int) -> None:
    manager = BlockManager(1, size)
    for tokens in range(50):
        blocks = manager.blocks_for(tokens)
        assert (blocks - 1) * size < tokens <= blocks * size or tokens == blocks == 0


def test_admission_takes_blocks_for_the_whole_prompt_or_changes_nothing() -> None:
    manager = BlockManager(3, 2)
    big = _sequence("abcdefg")
    assert not manager.admit(big)
    assert (manager.num_free_blocks, big.block_table) == (3, [])
    fits = _sequence("abcdef")
    assert manager.admit(fits)
    assert (manager.num_free_blocks, len(fits.block_table)) == (0, 3)


def test_keep_free_leaves_that_many_blocks() -> None:
    manager = BlockManager(5, 2)
    assert not manager.admit(_sequence("abcdef"), keep_free=3)
    assert manager.admit(_sequence("abcdef"), keep_free=2)


def test_a_shared_prefix_is_held_twice_and_stored_once() -> None:
    manager = BlockManager(10, 2)
    one = _computed(manager, "aabbcc")
    two = _computed(manager, "aabbdd")
    assert two.block_table[:2] == one.block_table[:2]
    assert [manager.ref_count(block) for block in one.block_table] == [2, 2, 1]
    assert manager.num_used_blocks == 4
    assert (manager.hit_tokens, manager.looked_up_tokens, manager.hit_rate) == (4, 12, 4 / 12)
    manager.release(one)
    assert [manager.ref_count(block) for block in two.block_table] == [1, 1, 1]
    manager.release(two)
    assert manager.num_free_blocks == 10


def test_at_least_one_token_is_left_to_compute() -> None:
    manager = BlockManager(10, 2)
    _computed(manager, "aabb")
    again = _sequence("aabb")
    assert manager.admit(again)
    assert again.num_computed_tokens == 2


def test_equal_blocks_after_different_beginnings_are_not_shared() -> None:
    manager = BlockManager(10, 2)
    _computed(manager, "aabb")
    other = _sequence("ccbb.")
    assert manager.admit(other)
    assert other.num_computed_tokens == 0


def test_salts_keep_tenants_apart() -> None:
    manager = BlockManager(20, 2)
    _computed(manager, "aabbcc", salt="x")
    for salt, cached in ((None, 0), ("y", 0), ("", 0), ("x", 4)):
        seq = _sequence("aabbcc", salt)
        assert manager.admit(seq)
        assert seq.num_computed_tokens == cached


def test_switched_off_nothing_is_shared() -> None:
    manager = BlockManager(10, 2, enable_prefix_caching=False)
    _computed(manager, "aabbcc")
    again = _computed(manager, "aabbcc")
    assert (manager.hit_tokens, manager.num_used_blocks, again.content_numbers) == (0, 6, [])


def test_blocks_without_content_go_first_then_the_longest_free_from_its_tail() -> None:
    manager = BlockManager(7, 2)
    old = _computed(manager, "aabbc")  # two full blocks and a part
    new = _computed(manager, "ddee")
    tables = (list(old.block_table), list(new.block_table))
    manager.release(new)
    manager.release(old)
    order = []
    for letter in "1234567":
        seq = _sequence(letter)
        assert manager.admit(seq)
        order += seq.block_table
    never_used = set(range(7)) - set(tables[0]) - set(tables[1])
    assert set(order[:3]) == never_used | {tables[0][2]}
    assert order[3:] == [tables[1][1], tables[1][0], tables[0][1], tables[0][0]]
    assert manager.evictions == 4


def test_an_evicted_block_is_not_found_again_and_what_continued_it_is_not_either() -> None:
    manager = BlockManager(4, 2)
    seq = _computed(manager, "aabbcc..")
    manager.release(seq)
    thief = _sequence("xx")  # takes the tail block only
    assert manager.admit(thief)
    again = _sequence("aabbcc")
    assert manager.admit(again)
    assert again.num_computed_tokens == 4
    manager.release(again)
    manager.release(thief)
    everything = _computed(manager, "12345678")
    manager.release(everything)
    once_more = _sequence("aabbcc")
    assert manager.admit(once_more)
    assert once_more.num_computed_tokens == 0


def test_a_free_cached_block_that_is_hit_counts_as_taken() -> None:
    """Three blocks free, two of them the prefix: two more are needed, one is there."""
    manager = BlockManager(4, 2)
    manager.release(_computed(manager, "aabb"))
    holder = _computed(manager, "z")
    assert manager.num_free_blocks == 3
    assert not manager.admit(_sequence("aabbccdd"))
    assert manager.admit(_sequence("aabbcc"))
    assert manager.num_free_blocks == 0
    assert manager.ref_count(holder.block_table[0]) == 1


def test_a_refused_head_is_looked_up_again_only_when_its_answer_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = BlockManager(8, 2)
    holder = _sequence("aabbcc")
    assert manager.admit(holder)  # nothing computed yet
    other = _computed(manager, "zzyy")
    lookups = []
    find = BlockManager._cached_prefix
    monkeypatch.setattr(manager, "_cached_prefix", lambda seq: lookups.append(seq) or find(manager, seq))
    head = _sequence("aabbccdd.")

    def asks(times: int, keep_free: int = 0) -> tuple[bool, int]:
        before = len(lookups)
        return [manager.admit(head, keep_free) for _ in range(times)][-1], len(lookups) - before

    assert asks(9) == (False, 1)  # five blocks wanted, three free
    manager.record_computed(holder, 2)
    assert asks(9) == (False, 1)  # one of the five is found
    assert asks(9, keep_free=1) == (False, 1)
    manager.record_computed(other, 4)
    assert asks(9, keep_free=1) == (False, 0)
    manager.record_computed(holder, 6)
    assert asks(1) == (True, 1)
    manager.release(head)
    manager.release(other)
    assert asks(1, keep_free=3) == (True, 1)


def test_grow_gives_a_block_only_at_a_boundary_and_says_when_there_is_none() -> None:
    manager = BlockManager(2, 2)
    seq = _computed(manager, "a")
    expected_blocks = [1, 2, 2]
    for token, blocks in zip((1, 2, 3), expected_blocks, strict=True):
        seq.token_ids.append(token)
        assert manager.grow(seq)
        assert len(seq.block_table) == blocks
    seq.token_ids.append(4)
    assert not manager.grow(seq)
    assert len(seq.block_table) == 2


def test_a_cleared_cache_finds_nothing_and_running_sequences_go_on() -> None:
    manager = BlockManager(10, 2)
    seq = _computed(manager, "aabb")
    manager.clear_cache()
    again = _computed(manager, "aabbc")
    assert again.num_computed_tokens == 5
    assert not set(again.block_table) & set(seq.block_table)
    seq.token_ids += [7, 7]
    assert manager.grow(seq)
    manager.record_computed(seq, 6)
    manager.release(seq)
    manager.release(again)
    assert manager.num_free_blocks == 10
