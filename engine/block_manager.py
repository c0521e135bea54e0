"""Paged KV blocks: who holds which, and which full blocks already hold a wanted prefix.

A block is free (``ref_count`` 0) or held by one or more sequences. A full block whose content is known is *cached*: it
can be found again by what it holds, also while it is free, until it is evicted for a new use. The index is exact, not a
hash that may collide: a block's key is its parent's content number and its own token ids, compared by value.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from engine.sequence import Sequence

ContentKey = tuple[Hashable, Hashable]


class BlockManager:
    """Allocates ``num_blocks`` blocks of ``block_size`` tokens; every operation is O(1) a block.

    Free blocks wait in eviction order: blocks without known content first, then least recently freed. A sequence frees
    its blocks from the tail, so a block is always evicted after the blocks that continue it.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks = {num_blocks} and block_size = {block_size} must both be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.evictions = 0  # blocks whose content was forgotten for a new use
        self.looked_up_tokens = 0  # of all admissions, those after a preemption included
        self.hit_tokens = 0  # of these, found in the cache
        self._ref_count = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(num_blocks))
        self._key_of: list[ContentKey | None] = [None] * num_blocks
        self._cached: dict[ContentKey, tuple[int, int]] = {}  # key -> (block, content number)
        self._next_content = 0
        self._num_releases = 0
        self._refused: tuple[Sequence, int, int] | None = None  # who was not admitted, keep_free and releases by then
        self._missing: ContentKey | None = None  # the first block that it would have had to find

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def hit_rate(self) -> float:
        """Share of the tokens of all admissions that the prefix cache had; NaN before the first."""
        return self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else float("nan")

    def ref_count(self, block: int) -> int:
        """How many sequences hold ``block``."""
        return self._ref_count[block]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        """Give ``seq`` blocks for all its known tokens, cached ones first, if ``keep_free`` others stay free.

        Sets ``block_table`` and ``num_computed_tokens`` (the cached prefix; at least one token is left to compute).
        Returns False, with nothing changed, where the blocks are not there. The head of the line asks again in every step;
        its prompt is looked up again only when a block was released or the next block of its prefix has come.
        """
        assert not seq.block_table
        attempt = (seq, keep_free, self._num_releases)
        if attempt == self._refused and self._missing not in self._cached:
            return False
        cached, parents = self._cached_prefix(seq)
        from_free = sum(self._ref_count[block] == 0 for block in cached)
        fresh = self.blocks_for(seq.num_tokens) - len(cached)
        if len(self._free) - from_free - fresh < keep_free:
            self._refused = attempt
            self._missing = self._key(seq, len(cached), parents)
            return False
        for block in cached:
            self._hold(block)
        seq.block_table = cached + [self._take_free() for _ in range(fresh)]
        seq.content_numbers = parents
        seq.num_computed_tokens = len(cached) * self.block_size
        self.looked_up_tokens += seq.num_tokens
        self.hit_tokens += seq.num_computed_tokens
        return True

    def grow(self, seq: Sequence) -> bool:
        """Give ``seq`` a block for its last known token where it has none; False where no block is free."""
        if len(seq.block_table) * self.block_size >= len(seq.token_ids):
            return True
        if not self._free:
            return False
        seq.block_table.append(self._take_free())
        return True

    def record_computed(self, seq: Sequence, num_tokens: int) -> None:
        """Enter into the index the blocks that hold nothing but the first ``num_tokens`` tokens of ``seq``.

        Called when the tokens are scheduled: every layer writes a step's keys and values before it reads any, so a
        block filled by this step can be shared by a sequence admitted to the same step.
        """
        size = self.block_size
        if not self.enable_prefix_caching or num_tokens < (len(seq.content_numbers) + 1) * size:
            return
        for index in range(len(seq.content_numbers), num_tokens // size):
            key = self._key(seq, index, seq.content_numbers)
            known = self._cached.get(key)
            if known is None:
                known = (seq.block_table[index], self._next_content)
                self._next_content += 1
                self._cached[key] = known
                self._key_of[known[0]] = key
            seq.content_numbers.append(known[1])

    def release(self, seq: Sequence) -> None:
        """Take all blocks from ``seq``, tail first; cached ones stay findable until evicted."""
        self._num_releases += 1
        for block in reversed(seq.block_table):
            self._ref_count[block] -= 1
            assert self._ref_count[block] >= 0
            if self._ref_count[block] == 0:
                self._free[block] = None
                if self._key_of[block] is None:
                    self._free.move_to_end(block, last=False)
        seq.block_table = []
        seq.content_numbers = []
        seq.num_computed_tokens = 0

    def clear_cache(self) -> None:
        """Forget all cached content (between experiments, so that one does not warm the next)."""
        self._cached.clear()
        self._key_of = [None] * self.num_blocks
        self._refused = None

    def _key(self, seq: Sequence, index: int, numbers: list[int]) -> ContentKey:
        """What block ``index`` of ``seq`` is found by; ``numbers`` are the content numbers of the blocks before it."""
        size = self.block_size
        parent: Hashable = numbers[index - 1] if index else ("root", seq.request.cache_salt)
        return (parent, tuple(seq.token_ids[index * size : (index + 1) * size]))

    def _cached_prefix(self, seq: Sequence) -> tuple[list[int], list[int]]:
        """Blocks and content numbers of the longest cached prefix that leaves a token to compute."""
        blocks: list[int] = []
        numbers: list[int] = []
        if not self.enable_prefix_caching:
            return blocks, numbers
        for index in range((seq.num_tokens - 1) // self.block_size):
            found = self._cached.get(self._key(seq, index, numbers))
            if found is None:
                break
            blocks.append(found[0])
            numbers.append(found[1])
        return blocks, numbers

    def _hold(self, block: int) -> None:
        if self._ref_count[block] == 0:
            del self._free[block]
        self._ref_count[block] += 1

    def _take_free(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._key_of[block]
        if key is not None:
            del self._cached[key]
            self._key_of[block] = None
            self.evictions += 1
        self._ref_count[block] = 1
        return block
