"""EngineCore: everything about serving but the model. Torch-free; the same object runs in real and in virtual time.

A step is *begin* (drain the inbox, schedule), *execute* (the executor's business), *finish* (book tokens, stamp). Real
engines call ``step()``; a simulator calls ``begin_step`` and ``finish_step`` with the modelled duration in between.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import compress
from typing import NamedTuple

from engine.executors.base import BatchShape, Executor, ScheduledBatch
from engine.recorder import Recorder, StepRow
from engine.scheduler import QueueFull, RequestRefused, Scheduler
from engine.sequence import Request, Sequence

Clock = Callable[[], float]


class TokenEvent(NamedTuple):
    """What a step (or an abort) did to one request: the new token, if any; whether it is over (``finish_reason`` set)."""

    seq: Sequence
    token_id: int | None


class _Begun(NamedTuple):
    """What is known of a step when it has been scheduled."""

    step: int
    start_s: float
    schedule_s: float
    idle_s: float
    drained: int
    shape: BatchShape
    inbox: int
    waiting: int
    running: int
    free_blocks: int

    def row(self, end_s: float, preempted: int) -> StepRow:
        lengths = (self.inbox, self.waiting, self.running, self.free_blocks)
        return StepRow(
            self.step, self.start_s, end_s, self.schedule_s, self.idle_s, self.drained, *self.shape, *lengths, preempted
        )


class EngineCore:
    """Inbox, scheduler, stamps and counts around an executor.

    ``add`` and ``abort`` may be called from any thread at any time, also in mid-step; everything else belongs to the
    loop's thread. Two things are kept apart on purpose: *stamps* are written on the sequences, the *gauge* reads the
    lengths of inbox, waiting line and running set whenever one of them changes. Little's law is then a comparison of two
    observers, not an identity.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        max_queue: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.eos_token_ids = eos_token_ids
        self.max_queue = max_queue
        self._recorder: Recorder | None = None
        self._inbox: dict[Sequence, None] = {}  # an ordered set
        self._aborts: deque[Sequence] = deque()
        self._live: dict[str, Sequence] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._begun: _Begun | None = None
        self._idle_s = 0.0
        self._refused = 0

    @property
    def num_live(self) -> int:
        """Requests received and not over."""
        return len(self._live)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._inbox or self._aborts or self.scheduler.has_work)

    def record_to(self, recorder: Recorder | None) -> None:
        """Send steps and gauge to ``recorder`` from now on; the old and the new one each get the counts of this moment."""
        with self._lock:
            self._read_gauge()
            self._recorder = recorder
            self._read_gauge()

    def counters(self) -> dict[str, int]:
        """What has been counted since the start: refusals, preemptions, and what the prefix cache did."""
        blocks = self.scheduler.block_manager
        return {
            "refused": self._refused,
            "preemptions": self.scheduler.preemptions,
            "looked_up_tokens": blocks.looked_up_tokens,
            "hit_tokens": blocks.hit_tokens,
            "evictions": blocks.evictions,
        }

    def check(self, request: Request) -> None:
        """Raise ``RequestRefused`` for a request that could never be served here as it asks, however empty the engine."""
        self.scheduler.check(request)
        params = request.params
        name = f"request {request.request_id!r}"
        vocab_size = self.executor.vocab_size
        if params.n != 1:
            raise RequestRefused(
                f"{name} has n = {params.n}; the core serves one sample a request: use LLM, or send {params.n} requests"
            )
        if params.logprobs is not None and vocab_size is None:
            raise RequestRefused(
                f"{name} has logprobs = {params.logprobs}; {type(self.executor).__name__} has no probabilities to give: "
                "use executor: model, or logprobs None"
            )
        if params.min_tokens > 0 and vocab_size is not None:
            ends = self.eos_token_ids.union(params.stop_token_ids)
            if len(ends) >= vocab_size and ends.issuperset(range(vocab_size)):
                raise RequestRefused(
                    f"{name} has min_tokens = {params.min_tokens}, but each of the {vocab_size} tokens ends an output "
                    "(stop_token_ids and the model's own ends): leave one out, or set min_tokens to 0"
                )

    def add(self, request: Request) -> Sequence:
        """Receive a request now.

        Raises:
            RequestRefused: the request can never be served here (``check``), its id is live already, or (``QueueFull``)
                the line is full.
        """
        received_s = self.clock()
        try:
            return self._receive(request, received_s)
        except RequestRefused:
            self._refused += 1
            raise

    def _receive(self, request: Request, received_s: float) -> Sequence:
        self.check(request)
        seq = Sequence.from_request(request, self.eos_token_ids)
        seq.received_s = seq.wait_since_s = received_s
        with self._lock:
            if request.request_id in self._live:
                raise RequestRefused(f"request id {request.request_id!r} is live already; give each request its own id")
            waiting = len(self._inbox) + self.scheduler.num_waiting
            if self.max_queue is not None and waiting >= self.max_queue:
                raise QueueFull(
                    f"request {request.request_id!r} refused: {waiting} requests wait already (max_queue = {self.max_queue})"
                )
            self._live[request.request_id] = seq
            self._inbox[seq] = None
            self._read_gauge()
        self._wake.set()
        return seq

    def abort(self, request_id: str) -> None:
        """End the request that is live under this id now, before the next step; a finished or unknown id is no error."""
        with self._lock:
            seq = self._live.get(request_id)
            if seq is not None:
                self._aborts.append(seq)
        self._wake.set()

    def wait_for_work(self, timeout: float | None = None) -> bool:
        """Block while there is nothing to do; the time counts as idle in the next step's row."""
        if self.has_work:
            return True
        started = self.clock()
        self._wake.wait(timeout)
        self._wake.clear()
        self._idle_s += self.clock() - started
        return self.has_work

    def wake(self) -> None:
        """Make a blocked ``wait_for_work`` return (for control messages)."""
        self._wake.set()

    def step(self) -> list[TokenEvent]:
        """One whole step in real time; with nothing to compute, only what aborts did.

        Where the executor raises (or the user interrupts it), everybody waits again: a later step starts clean.
        """
        aborted, batch = self.begin_step()
        if batch is None:
            return aborted
        try:
            token_ids, _ = self.executor.execute(batch)
        except BaseException:
            self._abandon_step()
            raise
        return aborted + self.finish_step(batch, token_ids)

    def begin_step(self) -> tuple[list[TokenEvent], ScheduledBatch | None]:
        """Apply aborts, drain the inbox and schedule. No batch means that nobody is there."""
        with self._lock:
            start_s = self.clock()  # under the lock: not before the receipt of any request that is drained here
            aborted = self._apply_aborts(start_s)
            drained = self._drain(start_s)
            if not self.scheduler.has_work:
                return aborted, None
            step = self.scheduler.num_steps
            batch = self.scheduler.schedule()
            for seq in batch.preempted:
                seq.wait_since_s = start_s
            for seq in batch.admitted:
                seq.wait_total_s += start_s - seq.wait_since_s
                if math.isnan(seq.scheduled_s):  # first visit
                    seq.scheduled_s = start_s
            if batch.admitted or batch.preempted:
                self._read_gauge()
            self._begun = _Begun(
                step, start_s, self.clock() - start_s, self._idle_s, drained, batch.shape(), *self._counts()
            )
        self._idle_s = 0.0
        return aborted, batch

    def finish_step(self, batch: ScheduledBatch, token_ids: list[int]) -> list[TokenEvent]:
        """Book the tokens, stamp them with the time now, release what has ended and record the step."""
        begun = self._begun
        assert begun is not None, "finish_step without begin_step"
        with self._lock:
            finished = self.scheduler.update(batch, token_ids)
            end_s = self.clock()
            for seq in finished:
                self._end(seq, end_s)
            if finished:
                self._read_gauge()
        events = []
        for seq, token_id in zip(compress(batch.seqs, batch.needs_token), token_ids, strict=True):
            if math.isnan(seq.emitted_first_s):
                seq.emitted_first_s = end_s
            seq.emitted_last_s = end_s
            events.append(TokenEvent(seq, token_id))
        if self._recorder is not None:
            self._recorder.record_step(begun.row(end_s, len(batch.preempted)), batch)
        self._begun = None
        return events

    def finish_early(self, seq: Sequence, reason: str) -> None:
        """End a live request between steps for a reason found outside the core (a stop string)."""
        with self._lock:
            self._take_out(seq, reason, self.clock())
            self._read_gauge()

    def _abandon_step(self) -> None:
        with self._lock:
            now = self.clock()
            for seq in self.scheduler.abandon():
                seq.wait_since_s = now
            self._begun = None
            self._read_gauge()

    def _drain(self, now: float) -> int:
        drained = len(self._inbox)
        for seq in self._inbox:
            seq.drained_s = now
            self.scheduler.add(seq)
        if drained:
            self._inbox.clear()
            self._read_gauge()
        return drained

    def _apply_aborts(self, now: float) -> list[TokenEvent]:
        events = []
        while self._aborts:
            seq = self._aborts.popleft()
            if not seq.is_finished:  # it may have ended by itself, or been aborted twice
                self._take_out(seq, "aborted", now)
                events.append(TokenEvent(seq, None))
        if events:
            self._read_gauge()
        return events

    def _take_out(self, seq: Sequence, reason: str, now: float) -> None:
        """End a live request wherever it is; a wait that is cut short counts."""
        is_received_only = math.isnan(seq.drained_s)
        if is_received_only:
            del self._inbox[seq]
        if is_received_only or self.scheduler.remove(seq):
            seq.wait_total_s += now - seq.wait_since_s
        seq.finish_reason = reason
        self._end(seq, now)

    def _end(self, seq: Sequence, now: float) -> None:
        seq.done_s = now
        del self._live[seq.request_id]
        self.executor.forget(seq.request_id)

    def _counts(self) -> tuple[int, int, int, int]:
        scheduler = self.scheduler
        return (
            len(self._inbox),
            scheduler.num_waiting,
            scheduler.num_running,
            scheduler.block_manager.num_free_blocks,
        )

    def _read_gauge(self) -> None:
        if self._recorder is not None:
            scheduler = self.scheduler
            self._recorder.record_gauge(self.clock(), len(self._inbox), scheduler.num_waiting, scheduler.num_running)
