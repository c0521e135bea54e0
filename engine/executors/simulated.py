"""An executor for virtual time: no computation, a modelled duration."""

from __future__ import annotations

from collections.abc import Callable

from engine.executors.base import BatchShape, ScheduledBatch
from engine.executors.placeholder import PlaceholderTokens

StepTime = Callable[[BatchShape], float]


class SimulatedExecutor:
    """Returns placeholders and ``step_time(shape)`` at once; whoever owns the clock lets that time pass.

    Args:
        step_time: seconds that a batch of this shape takes.
        tokens: where the token ids come from.
        block_size, num_kv_blocks, max_model_len: of the engine that is simulated.
    """

    def __init__(
        self, step_time: StepTime, tokens: PlaceholderTokens, *, block_size: int, num_kv_blocks: int, max_model_len: int
    ) -> None:
        self.block_size = block_size
        self.num_kv_blocks = num_kv_blocks
        self.max_model_len = max_model_len
        self.vocab_size: int | None = None
        self._step_time = step_time
        self._tokens = tokens

    def execute(self, batch: ScheduledBatch) -> tuple[list[int], float]:
        return self._tokens.next_tokens(batch), self._step_time(batch.shape())

    def forget(self, request_id: str) -> None:
        """Nothing is kept for a request."""
