"""What the engine gives back: to a caller in the same process, and as a message to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.sequence import Sequence


class RequestStats(NamedTuple):
    """The engine's own account of one request, complete when it is over. Stamps in seconds on the monotonic clock."""

    received_s: float
    scheduled_s: float
    emitted_first_s: float
    emitted_last_s: float
    done_s: float
    wait_total: float
    wait_reason: str | None
    cached_tokens: int
    preemptions: int
    visible_step: int

    @classmethod
    def of(cls, seq: Sequence) -> RequestStats:
        return cls(
            seq.received_s,
            seq.scheduled_s,
            seq.emitted_first_s,
            seq.emitted_last_s,
            seq.done_s,
            seq.wait_total_s,
            None if seq.wait_reason is None else seq.wait_reason.value,
            seq.num_cached_tokens,
            seq.preemptions,
            seq.visible_step,
        )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's output so far, or in the end.

    ``text`` and ``token_ids`` are the whole output, ``new_text`` and ``new_token_ids`` what this step added. ``logprobs``
    has a dict of token id to log-probability for every output token if ``SamplingParams.logprobs`` asked for them:
    the token itself first, then the likeliest ones. ``other_samples`` holds samples 1 to n - 1 in what ``generate``
    returns for ``SamplingParams.n`` > 1.
    ``output["text"]`` works too, as in nano-vllm's example.
    """

    request_id: str
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    new_text: str
    new_token_ids: list[int]
    finish_reason: str | None
    stats: RequestStats
    logprobs: list[dict[int, float]] | None = None
    other_samples: tuple[RequestOutput, ...] = ()

    @property
    def samples(self) -> tuple[RequestOutput, ...]:
        """All n samples of the prompt, this one first."""
        return (self, *self.other_samples)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def __getitem__(self, name: str) -> Any:
        if name not in ("text", "token_ids"):
            raise KeyError(f"{name!r}; a RequestOutput answers ['text'] and ['token_ids'], the rest are attributes")
        return getattr(self, name)
