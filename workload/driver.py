"""The load driver: one thread that sends at absolute deadlines and stamps what comes back.

Arrivals never wait for the system: a late request goes at once and is recorded as late, and the plan is never re-anchored.
Time is the target's (``Target.now``), so the same driver runs in real and in virtual time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from workload.loops import Loop, Offer
from workload.phases import Phases
from workload.records import RequestRecord
from workload.run_directory import ClientTables
from workload.targets.base import Target, TargetEvent, TargetFailed

HOUSEKEEPING_S = 0.5  # rows are flushed and progress is told this often, where no deadline is near
QUIET_S = 20e-3  # a deadline nearer than this postpones housekeeping (a flush can take 10 ms),
OVERDUE_S = 5.0  # but not for longer than this.
QUIET_ROWS = 400  # rows written at once in a quiet moment (3 ms).
BUSY_ROWS = 25  # Between deadlines so few (0.1 ms), but at once when they are there: after seconds without a flush its
BUSY_S = 0.5e-3  # code and data have left the caches and it takes 5 to 25 ms. The gap that such a flush needs.
LISTEN_S = 0.5e-3  # how long answers may wait for being stamped while requests due at one moment are sent
DRAIN_LIMIT_S = 60.0  # how long a target may take to confirm that what was left over has been aborted


class Progress(NamedTuple):
    """Where a run stands; numbers of requests since its origin."""

    elapsed_s: float
    phase: str
    offered: int  # arrived, whether sent or held back by the user's cap
    ended: int  # whatever became of them
    completed: int  # with their whole answer
    in_flight: int  # sent and not ended
    capped: int  # waiting for the user's cap
    unanswered: int  # in flight without a first token: in the engine's queue, or in their prefill
    recent_ttft_s: float  # median of the last requests; nan before the first


@dataclass(frozen=True)
class DriveResult:
    """What a run came to. Times in seconds from its origin; ``lags`` in seconds, one per request sent."""

    measure_start_s: float
    measure_end_s: float
    end_s: float
    counts: dict[str, int]
    lags: list[float]


class Driver:
    """Drives one run of ``loop`` against ``target`` (already started) and writes the client's rows to ``tables``.

    Args:
        phases: tells warm-up, measurement and cool-down apart.
        cooldown_limit_s: how long after the measured phase its last requests are waited for; then they are censored.
        max_concurrency: a cap on requests in flight that the user asked for; the wait for it is ``cap_wait``.
        timeout_s: a client's patience, counted from the intended arrival like every latency. Then its request is aborted
            (or, under a cap, never sent); it ends as ``timeout`` when the target has let go of it.
        on_progress: called now and then.
    """

    def __init__(
        self,
        target: Target,
        loop: Loop,
        phases: Phases,
        tables: ClientTables,
        *,
        origin_s: float,
        cooldown_limit_s: float = 60.0,
        max_concurrency: int | None = None,
        timeout_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._target = target
        self._loop = loop
        self._phases = phases
        self._tables = tables
        self._origin_s = origin_s
        self._cooldown_limit_s = cooldown_limit_s
        self._cap = math.inf if max_concurrency is None else max_concurrency
        self._timeout_s = timeout_s
        self._patience: deque[tuple[float, RequestRecord]] = deque()  # when each client gives up, in order of arrival
        self._on_progress = on_progress
        self._in_flight: dict[str, RequestRecord] = {}
        self._capped: deque[tuple[Offer, RequestRecord, float]] = deque()
        self._measured_open = 0
        self._counts: dict[str, int] = {}
        self._lags: list[float] = []
        self._recent_ttft: deque[float] = deque(maxlen=50)
        self._housekeeping_s = 0.0

    def run(self) -> DriveResult:
        """Send until every measured request has ended (or the limit is reached), then abort the rest.

        Raises:
            TargetFailed: the target died; requests in flight are recorded as failed.
            KeyboardInterrupt: rows so far are written, requests in flight as censored.
        """
        try:
            self._drive()
            end_s = self._now()
            self._abort_rest()
        except TargetFailed as failure:
            self._give_up("failed", str(failure))
            raise
        except KeyboardInterrupt:
            self._give_up(None, None)
            raise
        start_s, measure_end_s = self._phases.window(end_s)
        return DriveResult(start_s, measure_end_s, end_s, self._counts, self._lags)

    def _now(self) -> float:
        return self._target.now() - self._origin_s

    def _reached(self, moment_s: float) -> bool:
        """Whether ``moment_s`` has come, by the sum that ``wait`` was given: a difference may round to just before it."""
        return self._target.now() >= self._origin_s + moment_s

    def _drive(self) -> None:
        while True:
            if self._is_over():
                return
            self._send_due()
            self._receive()
            gives_up_s = self._time_out()
            due_s = self._loop.next_due()
            now_s = self._now()
            overdue_s = now_s - self._housekeeping_s
            is_quiet = due_s - now_s > QUIET_S
            if overdue_s >= 0 and (is_quiet or overdue_s > OVERDUE_S):
                self._housekeep(now_s, QUIET_ROWS if is_quiet else BUSY_ROWS)
            elif due_s - now_s > BUSY_S and self._tables.waiting >= BUSY_ROWS:
                self._tables.flush(BUSY_ROWS)
            wake_s = min(due_s, max(self._housekeeping_s, now_s + QUIET_S), self._deadline_s(), gives_up_s)
            self._target.wait(self._origin_s + wake_s)

    def _deadline_s(self) -> float:
        """When something has to happen without news: the end of the measured phase, then the limit."""
        measure_end_s = self._phases.measure_end_s
        return measure_end_s + self._cooldown_limit_s if self._reached(measure_end_s) else measure_end_s

    def _is_over(self) -> bool:
        if self._loop.exhausted and not self._in_flight and not self._capped:
            return True
        measure_end_s = self._phases.measure_end_s
        if (
            not self._reached(measure_end_s) or self._loop.next_due() < measure_end_s
        ):  # however late, it belongs to the run
            return False
        return self._measured_open == 0 or self._reached(self._phases.measure_end_s + self._cooldown_limit_s)

    def _send_due(self) -> None:
        """Send what is due. Of many due at once all go first; the books on them and answers wait, ``LISTEN_S`` at most."""
        began_s = now_s = self._now()
        room = self._cap - len(self._in_flight)
        taken: list[tuple[Offer, float]] = []
        try:
            while self._reached(self._loop.next_due()) and now_s - began_s <= LISTEN_S:
                offer = self._loop.take()
                now_s = self._now()
                taken.append((offer, now_s))
                if len(taken) <= room:
                    self._target.submit(offer.request)
        finally:
            for number, (offer, now_s) in enumerate(taken, 1):
                record = self._new_record(offer)
                if number <= room:
                    self._book(offer, record, now_s)
                else:
                    self._capped.append((offer, record, now_s))

    def _time_out(self) -> float:
        """Give up on the requests whose time is over; returns when the next one's will be."""
        while self._patience:
            gives_up_s, record = self._patience[0]
            if record.finish_reason is None and not self._reached(gives_up_s):
                return gives_up_s
            self._patience.popleft()
            if record.finish_reason is not None:
                continue
            record.finish_reason = "timeout"
            record.error = f"gave up {self._timeout_s:g} s after its intended arrival"
            if record.request_id in self._in_flight:
                self._target.abort(record.request_id)
            else:
                self._time_out_unsent(record)
        return math.inf

    def _time_out_unsent(self, record: RequestRecord) -> None:
        """A request whose time ran out while it waited for the user's own cap."""
        (at,) = (at for at, (_, waiting, _) in enumerate(self._capped) if waiting is record)
        now_s = self._now()
        record.finished_s = now_s
        record.cap_wait = now_s - self._capped[at][2]
        del self._capped[at]
        self._close(record)
        self._loop.on_end(record.request_id, now_s)

    def _new_record(self, offer: Offer) -> RequestRecord:
        request = offer.request
        phase = self._phases.phase_of(offer.intended_s)
        self._measured_open += phase == "measure"
        record = RequestRecord(
            request_id=request.request_id,
            phase=phase,
            intended_s=offer.intended_s,
            prompt_tokens=len(request.prompt_token_ids),
            max_tokens=request.params.max_tokens,
            predicted_output_tokens=request.predicted_output_tokens,
            session_id=offer.session_id,
            turn=offer.turn,
            priority=request.priority,
        )
        if self._timeout_s is not None:
            self._patience.append((record.intended_s + self._timeout_s, record))
        return record

    def _book(self, offer: Offer, record: RequestRecord, sent_s: float) -> None:
        """Note that the request of ``record`` was sent."""
        self._in_flight[record.request_id] = record
        record.sent_s = sent_s
        self._lags.append(record.sent_s - record.intended_s - record.cap_wait)
        self._tables.record_prompt(offer.request)

    def _receive(self) -> None:
        while events := self._target.next_events():
            now_s = self._now()
            for event in events:
                self._on_event(event, now_s)

    def _on_event(self, event: TargetEvent, now_s: float) -> None:
        record = self._in_flight[event.request_id]
        if event.token_ids and record.finish_reason is None:  # nobody listens any more after a timeout
            if not record.token_s:
                self._recent_ttft.append(now_s - record.intended_s)
            record.token_s += [now_s] * len(event.token_ids)
            self._loop.on_tokens(event.request_id, event.token_ids)
        if event.finish_reason is None:
            return
        if record.finish_reason is None:
            record.finish_reason = event.finish_reason
            record.error = event.error
        record.finished_s = now_s
        record.stats = event.stats
        del self._in_flight[event.request_id]
        self._close(record)
        self._loop.on_end(event.request_id, now_s)
        if self._capped:
            offer, waiting, due_s = self._capped.popleft()
            sent_s = self._now()
            waiting.cap_wait = sent_s - due_s
            self._book(offer, waiting, sent_s)
            self._target.submit(offer.request)

    def _close(self, record: RequestRecord) -> None:
        outcome = record.finish_reason or "censored"
        self._counts[outcome] = self._counts.get(outcome, 0) + 1
        self._measured_open -= record.phase == "measure"
        self._tables.record_request(record)

    def _abort_rest(self) -> None:
        """Abort what is still in flight, so that the target is empty for the next run; its rows are censored."""
        left = dict(self._in_flight)
        for request_id, record in left.items():
            if record.finish_reason is None:
                self._target.abort(request_id)
        limit_s = self._now() + DRAIN_LIMIT_S
        while self._in_flight:
            if self._now() > limit_s:
                raise TargetFailed(f"{len(self._in_flight)} aborted requests were not confirmed in {DRAIN_LIMIT_S:g} s")
            for event in self._target.next_events():
                record = self._in_flight[event.request_id]
                if event.finish_reason is not None:
                    record.stats = event.stats
                    del self._in_flight[event.request_id]
            self._target.wait(min(self._target.now() + HOUSEKEEPING_S, self._origin_s + limit_s))
        for record in left.values():
            self._close(record)
        for _, record, _ in self._capped:
            self._close(record)

    def _give_up(self, reason: str | None, error: str | None) -> None:
        for record in [*self._in_flight.values(), *(record for _, record, _ in self._capped)]:
            if record.finish_reason is None:
                record.finish_reason, record.error = reason, error
            self._close(record)
        self._tables.flush()

    def _housekeep(self, now_s: float, rows: int) -> None:
        """Write some rows; once none is left, tell progress and rest."""
        if self._tables.flush(rows):
            return
        self._housekeeping_s = now_s + HOUSEKEEPING_S
        if self._on_progress is not None:
            recent = sorted(self._recent_ttft)
            ended, in_flight, capped = sum(self._counts.values()), len(self._in_flight), len(self._capped)
            self._on_progress(
                Progress(
                    elapsed_s=now_s,
                    phase=self._phases.phase_of(now_s),
                    offered=ended + in_flight + capped,
                    ended=ended,
                    completed=self._counts.get("stop", 0) + self._counts.get("length", 0),
                    in_flight=in_flight,
                    capped=capped,
                    unanswered=sum(not record.token_s for record in self._in_flight.values()),
                    recent_ttft_s=recent[len(recent) // 2] if recent else math.nan,
                )
            )
