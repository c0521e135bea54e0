"""A shadow of the KV cache: what every slot holds, so that a wrong read is seen at the moment it happens.

``ShadowExecutor`` keeps for each slot the salt and the whole prefix whose last token was written there. As the engine's
executors do, a step first writes all its rows and then reads. Each row must find exactly its own prefix. The next token
is a function of what was read, so an output is known beforehand (``expected_output``), whatever the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executors.base import ScheduledBatch
from engine.recorder import StepRow
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request, Sequence

Prefix = tuple[str | None, tuple[int, ...]]
EOS = 0


class WrongRead(AssertionError):
    """A row's attention read something else than its own prefix."""


class FakeClock:
    """Virtual time in seconds; moves when told."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def next_token(prefix: Seq[int], vocabulary: int) -> int:
    """A "model": a fixed function of the whole prefix, with values in ``range(vocabulary)`` (0 is the end token)."""
    state = 17
    for token in prefix:
        state = (state * 31 + int(token) + 1) % 1_000_003
    return state % vocabulary


def expected_output(request: Request, vocabulary: int, max_model_len: int) -> tuple[list[int], str]:
    """Output and finish reason of ``request`` alone, from the definition, without an engine."""
    tokens = [int(token) for token in request.prompt_token_ids]
    output: list[int] = []
    while True:
        output.append(next_token(tokens + output, vocabulary))
        if output[-1] == EOS:
            return output, "stop"
        if len(output) == request.params.max_tokens or len(tokens) + len(output) == max_model_len:
            return output, "length"


class ShadowExecutor:
    """Writes prefixes instead of keys and values and checks every read."""

    def __init__(
        self,
        block_size: int,
        num_kv_blocks: int,
        max_model_len: int,
        vocabulary: int = 5,
        token_type: Callable[[int], int] = int,
    ) -> None:
        self.block_size = block_size
        self.num_kv_blocks = num_kv_blocks
        self.max_model_len = max_model_len
        self.vocabulary = vocabulary
        self.vocab_size: int | None = None
        self.reads = 0
        self.forgotten: Counter[str] = Counter()
        self._token_type = token_type
        self._slots: dict[tuple[int, int], Prefix] = {}

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        for seq, count in zip(batch.seqs, batch.num_tokens, strict=True):
            self._write(seq, seq.num_computed_tokens, seq.num_computed_tokens + count)
        tokens = []
        for seq, count, needs_token in zip(batch.seqs, batch.num_tokens, batch.needs_token, strict=True):
            self.check_reads(seq, seq.num_computed_tokens + count)
            if needs_token:
                tokens.append(self._token_type(next_token(seq.token_ids, self.vocabulary)))
        return tokens, 1.0

    def forget(self, request_id: str) -> None:
        self.forgotten[request_id] += 1

    def check_reads(self, seq: Sequence, num_tokens: int) -> None:
        """Raise ``WrongRead`` unless the first ``num_tokens`` tokens of ``seq`` lie where its block table says."""
        tokens = _plain(seq.token_ids)
        for position in range(num_tokens):
            found = self._slots.get(self._slot(seq, position))
            wanted = (seq.request.cache_salt, tokens[: position + 1])
            self.reads += 1
            if found != wanted:
                raise WrongRead(f"{seq.request_id} at position {position}: found {found}, wanted {wanted}")

    def _write(self, seq: Sequence, begin: int, end: int) -> None:
        tokens = _plain(seq.token_ids)
        for position in range(begin, end):
            self._slots[self._slot(seq, position)] = (seq.request.cache_salt, tokens[: position + 1])

    def _slot(self, seq: Sequence, position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.block_size)
        return seq.block_table[block], offset


def _plain(token_ids: Seq[int]) -> tuple[int, ...]:
    """Values alone, so that a token type with a strange equality cannot fool the comparison."""
    return tuple(int(token) for token in token_ids)


def make_request(request_id: str, prompt: Seq[int] | int, max_tokens: int = 4, **options: int | str | None) -> Request:
    """A request with these token ids, or with ``prompt`` tokens that no other request id shares."""
    if isinstance(prompt, int):
        start = 1000 + 100_003 * (sum(map(ord, request_id)) + 131 * len(request_id))
        prompt = range(start, start + prompt)
    return Request(request_id, list(prompt), SamplingParams(max_tokens=max_tokens), **options)  # type: ignore[arg-type]


def make_scheduler(num_kv_blocks: int, block_size: int, max_model_len: int = 1000, **options: object) -> Scheduler:
    """A scheduler with no watermark unless asked for."""
    config = EngineConfig(**{"watermark": 0.0, **options})  # type: ignore[arg-type]
    return Scheduler(config, num_kv_blocks, block_size, max_model_len)


def make_shadow_core(
    num_kv_blocks: int,
    block_size: int,
    max_model_len: int = 1000,
    *,
    vocabulary: int = 5,
    token_type: Callable[[int], int] = int,
    clock: Callable[[], float] | None = None,
    max_queue: int | None = None,
    **options: object,
) -> EngineCore:
    """A core over a ``ShadowExecutor``."""
    executor = ShadowExecutor(block_size, num_kv_blocks, max_model_len, vocabulary, token_type)
    return EngineCore(
        make_scheduler(num_kv_blocks, block_size, max_model_len, **options),
        executor,
        eos_token_ids=frozenset([EOS]),
        max_queue=max_queue,
        clock=clock or FakeClock(),
    )


def check_blocks(core: EngineCore) -> None:
    """Every block is free or held, counted as often as it is held, and every computed token lies where it should."""
    manager = core.scheduler.block_manager
    held = Counter(block for seq in core.scheduler.running for block in seq.block_table)
    assert [manager.ref_count(block) for block in range(manager.num_blocks)] == [
        held[block] for block in range(manager.num_blocks)
    ]
    assert manager.num_free_blocks + len(held) == manager.num_blocks
    assert manager.num_free_blocks + manager.num_used_blocks == manager.num_blocks
    for seq in core.scheduler.running:
        assert len(set(seq.block_table)) == len(seq.block_table)
        assert seq.num_computed_tokens <= seq.num_tokens <= core.scheduler.max_model_len
        assert manager.blocks_for(seq.num_computed_tokens) <= len(seq.block_table) <= manager.blocks_for(seq.num_tokens)
        core.executor.check_reads(seq, seq.num_computed_tokens)  # type: ignore[attr-defined]


def check_batch(core: EngineCore, batch: ScheduledBatch) -> None:
    """Budget, seats and the batch's own consistency, after ``begin_step`` and before the tokens are booked."""
    scheduler = core.scheduler
    assert len({id(seq) for seq in batch.seqs}) == len(batch.seqs) > 0
    assert all(count >= 1 for count in batch.num_tokens)
    assert sum(batch.num_tokens) <= scheduler.max_num_batched_tokens
    assert scheduler.num_running <= scheduler.max_num_seqs
    running = {id(seq) for seq in scheduler.running}
    for seq, count, needs_token in zip(batch.seqs, batch.num_tokens, batch.needs_token, strict=True):
        assert id(seq) in running
        assert needs_token == (seq.num_computed_tokens + count == seq.num_tokens)
        assert len(seq.block_table) * scheduler.block_manager.block_size >= seq.num_computed_tokens + count
    for seq in batch.preempted:
        assert not seq.block_table
        assert id(seq) not in running
        assert seq.num_computed_tokens == 0


def run_to_end(core: EngineCore, max_steps: int) -> int:
    """Step until nobody is live, checking after every step. Returns the steps; raises if it takes more than allowed."""
    steps = 0
    while core.has_work:
        checked_step(core)
        steps += 1
        assert steps <= max_steps, f"stall: {core.num_live} live after {steps} steps"
    assert core.num_live == 0
    assert core.scheduler.block_manager.num_used_blocks == 0
    return steps


def checked_step(core: EngineCore, between: Callable[[], None] = lambda: None) -> None:
    """One step with every check; ``between`` is called between begin and finish."""
    _, batch = core.begin_step()
    if batch is not None:
        check_batch(core, batch)
        token_ids, duration = core.executor.execute(batch)
        between()
        if isinstance(core.clock, FakeClock):
            core.clock.advance(duration)
        core.finish_step(batch, token_ids)
    check_blocks(core)


class MemoryRecorder:
    """Keeps what the core reports, as lists."""

    def __init__(self) -> None:
        self.steps: list[StepRow] = []
        self.batches: list[list[tuple[str, int]]] = []
        self.gauge: list[tuple[float, int, int, int]] = []

    def record_step(self, row: StepRow, batch: ScheduledBatch) -> None:
        self.steps.append(row)
        self.batches.append([(seq.request_id, n) for seq, n in zip(batch.seqs, batch.num_tokens, strict=True)])

    def record_gauge(self, t_s: float, inbox: int, waiting: int, running: int) -> None:
        self.gauge.append((t_s, inbox, waiting, running))

    def areas(self) -> tuple[float, float, float]:
        """Integrals of inbox, waiting line and running set over time."""
        rows = list(zip(self.gauge, self.gauge[1:], strict=False))
        inbox, waiting, running = (
            sum(before[column] * (after[0] - before[0]) for before, after in rows) for column in (1, 2, 3)
        )
        return inbox, waiting, running
