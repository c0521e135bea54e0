"""Which requests compute how many tokens in the next step. No torch, no clock, no threads."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import compress, count
from operator import attrgetter

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.executors.base import ScheduledBatch
from engine.policies import Policy, make_policy
from engine.sequence import Request, Sequence, WaitReason


class RequestRefused(ValueError):
    """The engine will not take this request; the message says why and what would be taken."""


class QueueFull(RequestRefused):
    """The waiting line is at its bound."""


class Scheduler:
    """Continuous batching under one token budget a step.

    Owns the waiting line, the running set and the block manager. A request's rank (the policy's key, then the order of
    ``add``) never changes, so the line is a heap and nothing is searched: to be added, admitted, preempted, taken out or
    ended costs a request O(log waiting) at most, besides its own blocks. A step walks once over the running set.
    """

    def __init__(self, config: EngineConfig, num_kv_blocks: int, block_size: int, max_model_len: int) -> None:
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_model_len = max_model_len
        self.block_manager = BlockManager(num_kv_blocks, block_size, config.enable_prefix_caching)
        self.policy: Policy = make_policy(config)
        self.running: dict[Sequence, None] = {}  # an ordered set; by rank when a step begins
        self.preemptions = 0
        self.num_steps = 0
        self._watermark_blocks = int(config.watermark * num_kv_blocks)
        self._is_sorted = True  # whether running is in order of rank
        self._waiting: set[Sequence] = set()
        self._heap: list[tuple[tuple[float, int], Sequence]] = []  # ranks; also of sequences that were taken out
        self._order = count()
        self._blocked_by: WaitReason | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting)

    def check(self, request: Request) -> None:
        """Raise ``RequestRefused`` for a request that could never finish here, however empty the engine."""
        prompt = len(request.prompt_token_ids)
        name = f"request {request.request_id!r}"
        if prompt == 0:
            raise RequestRefused(f"{name} has an empty prompt; give at least one token")
        if prompt >= self.max_model_len:
            raise RequestRefused(
                f"{name} has a prompt of {prompt} tokens; max_model_len = {self.max_model_len} leaves no room for an "
                f"output token: shorten the prompt to {self.max_model_len - 1} or raise max_model_len"
            )
        # the last token's keys and values are never needed
        most = min(prompt + request.params.max_tokens, self.max_model_len) - 1
        blocks = self.block_manager
        if blocks.blocks_for(most) > blocks.num_blocks:
            raise RequestRefused(
                f"{name} may need {blocks.blocks_for(most)} KV blocks ({most} tokens, {blocks.block_size} a block); the "
                f"cache has {blocks.num_blocks}: lower max_tokens, shorten the prompt or raise num_kv_blocks"
            )

    def add(self, seq: Sequence) -> None:
        """Put a checked sequence into the waiting line."""
        key = self.policy.key(seq)
        assert key == key, "an ageing policy needs received_s before add"
        seq.rank = (key, next(self._order))
        seq.visible_step = self.num_steps
        self._enqueue(seq)

    def remove(self, seq: Sequence) -> bool:
        """Take out a sequence wherever it is (an abort) and free its blocks. Returns whether it was waiting."""
        was_waiting = seq in self._waiting
        if was_waiting:
            self._waiting.remove(seq)
            self._drop_stale_entries()
        else:
            del self.running[seq]
        self.block_manager.release(seq)
        return was_waiting

    def schedule(self) -> ScheduledBatch:
        """Plan the next step.

        A sequence has a gap: known tokens that are not computed. A step spends ``max_num_batched_tokens`` on closing
        gaps; there is no prefill or decode phase.

        1. Running sequences with a gap of one token (decodes), in order, each get that token. One that needs a new block
           and finds none preempts the last in order that has not been given anything in this step, perhaps itself: the
           victim gives back all its blocks and waits again (its tokens are recomputed later).
        2. Running sequences with a larger gap (prompts in chunks), in order, get what is left of the budget.
        3. The head of the waiting line is admitted while a seat, a token of budget and blocks for *all* its known tokens
           are left, the policy agrees and nobody was preempted. Nobody overtakes the head.

        ``prefill_first`` moves step 3, then step 2, before step 1, but leaves every decode its token: the budget is at
        least the number of seats.
        """
        batch = ScheduledBatch()
        budget = self.max_num_batched_tokens
        decodes: deque[Sequence] = deque()
        chunks: deque[Sequence] = deque()
        for seq in self._running_in_order():
            gap = len(seq.token_ids) - seq.num_computed_tokens  # not by the property: this is the hot path
            (decodes if gap == 1 else chunks).append(seq)
        if self.policy.running_first:
            budget = self._schedule_decodes(decodes, chunks, batch, budget)
            budget = self._schedule_chunks(chunks, batch, budget)
            self._admit(batch, budget)
        else:
            reserve = len(decodes)
            left = self._admit(batch, budget - reserve)
            left = self._schedule_chunks(chunks, batch, left)
            self._schedule_decodes(decodes, chunks, batch, left + reserve)
        self.num_steps += 1
        assert sum(batch.num_tokens) <= self.max_num_batched_tokens
        assert len(self.running) <= self.max_num_seqs
        assert batch.seqs or not self.has_work, "somebody waits and nobody computes"
        return batch

    def update(self, batch: ScheduledBatch, token_ids: list[int]) -> list[Sequence]:
        """Book the step's result: tokens computed, the new token of each closed gap. Returns those that finished."""
        finished = []
        for seq, num_tokens in zip(batch.seqs, batch.num_tokens, strict=True):
            seq.num_computed_tokens += num_tokens
        for seq, token_id in zip(compress(batch.seqs, batch.needs_token), token_ids, strict=True):
            seq.append_token(token_id, self.max_model_len)
            if seq.finish_reason is not None:
                del self.running[seq]
                self.block_manager.release(seq)
                finished.append(seq)
        return finished

    def abandon(self) -> list[Sequence]:
        """Undo a step that was scheduled and not computed: what it should have written is not in the cache.

        All running sequences wait again and nothing cached is trusted. Returns those that were sent back.
        """
        sent_back = list(self.running)
        for seq in sent_back:
            self._send_back(seq)
        self.block_manager.clear_cache()
        return sent_back

    def _enqueue(self, seq: Sequence) -> None:
        self._waiting.add(seq)
        heapq.heappush(self._heap, (seq.rank, seq))

    def _running_in_order(self) -> dict[Sequence, None]:
        """The running set by rank; sorted anew only after somebody was admitted who goes before others."""
        if not self._is_sorted:
            self.running = dict.fromkeys(sorted(self.running, key=attrgetter("rank")))
            self._is_sorted = True
        return self.running

    def _schedule_decodes(
        self, decodes: deque[Sequence], chunks: deque[Sequence], batch: ScheduledBatch, budget: int
    ) -> int:
        """Step 1. What is left in the two lines has been given nothing yet: the last of either may have to give way."""
        grow, give = self.block_manager.grow, self._give
        while decodes:
            if grow(decodes[0]):
                budget -= give(decodes.popleft(), 1, batch)
            else:
                last = max((line for line in (decodes, chunks) if line), key=lambda line: line[-1].rank)
                self._preempt(last.pop(), batch)
        return budget

    def _schedule_chunks(self, chunks: deque[Sequence], batch: ScheduledBatch, budget: int) -> int:
        """Step 2."""
        while chunks and budget:
            seq = chunks.popleft()
            budget -= self._give(seq, min(seq.num_uncomputed_tokens, budget), batch)
        return budget

    def _admit(self, batch: ScheduledBatch, budget: int) -> int:
        """Step 3."""
        blocked_before = self._blocked_by
        self._blocked_by = None
        while self._waiting:
            self._drop_stale_heads()
            seq = self._heap[0][1]
            reason = self._why_not(seq, batch, budget)
            if reason is not None:
                self._blocked_by = reason
                break
            heapq.heappop(self._heap)
            self._waiting.remove(seq)
            if seq.preemptions == 0:
                seq.num_cached_tokens = seq.num_computed_tokens
                if seq.visible_step < self.num_steps:
                    seq.wait_reason = blocked_before
            self._is_sorted &= not self.running or next(reversed(self.running)).rank < seq.rank
            self.running[seq] = None
            batch.admitted.append(seq)
            budget -= self._give(seq, min(seq.num_uncomputed_tokens, budget), batch)
        return budget

    def _why_not(self, seq: Sequence, batch: ScheduledBatch, budget: int) -> WaitReason | None:
        """What keeps the head from being admitted now; None when it now holds its blocks and may run."""
        if len(self.running) >= self.max_num_seqs or not self.policy.may_admit(len(self.running), len(batch.admitted)):
            return WaitReason.SEATS
        if budget <= 0:
            return WaitReason.BUDGET
        keep_free = self._watermark_blocks if self.running else 0
        if batch.preempted or not self.block_manager.admit(seq, keep_free):
            return WaitReason.KV
        return None

    def _give(self, seq: Sequence, num_tokens: int, batch: ScheduledBatch) -> int:
        computed = seq.num_computed_tokens + num_tokens
        batch.seqs.append(seq)
        batch.num_tokens.append(num_tokens)
        batch.needs_token.append(computed == len(seq.token_ids))
        size = self.block_manager.block_size
        if computed // size > seq.num_computed_tokens // size:  # a block becomes full
            self.block_manager.record_computed(seq, computed)
        return num_tokens

    def _preempt(self, victim: Sequence, batch: ScheduledBatch) -> None:
        self.preemptions += 1
        batch.preempted.append(victim)
        self._send_back(victim)

    def _send_back(self, seq: Sequence) -> None:
        """From running to waiting, without blocks: its tokens are computed again later."""
        del self.running[seq]
        self.block_manager.release(seq)
        seq.preemptions += 1
        seq.wait_reason = WaitReason.KV
        self._enqueue(seq)

    def _drop_stale_heads(self) -> None:
        """Pop what was taken out while it waited."""
        while self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)

    def _drop_stale_entries(self) -> None:
        """Rebuild a heap of which most were taken out: O(1) a removal on average, and what was aborted does not pile up."""
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)
