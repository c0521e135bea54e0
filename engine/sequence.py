"""One request inside the engine: its tokens, its KV blocks and its stamps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.sampling_params import SamplingParams

NAN = float("nan")


class WaitReason(str, Enum):
    """Why the head of the waiting line was not admitted."""

    SEATS = "seats"
    BUDGET = "budget"
    KV = "kv"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for. Token ids only: text is turned into ids before the core.

    Attributes:
        request_id: unique among live requests.
        prompt_token_ids: at least one id.
        params: sampling options.
        priority: lower goes first under the ``priority`` policy.
        predicted_output_tokens: a guess that the ``sjf`` policy may use.
        cache_salt: requests share prefix-cache blocks only with the same salt.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    predicted_output_tokens: int | None = None
    cache_salt: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """The mutable state of a request. Owned by the scheduler; the core writes the stamps.

    ``num_computed_tokens`` of the ``num_tokens`` known tokens have their keys and values in the cache; a step closes
    part of the gap. When the gap is closed, the step's logits give the next token. Stamps are seconds on the core's
    clock, ``nan`` until they happen.
    """

    request: Request
    token_ids: list[int]
    num_prompt_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    content_numbers: list[int] = field(default_factory=list)  # of the full blocks entered in the prefix cache
    logprobs: list[dict[int, float]] = field(default_factory=list)  # of each output token, if the request asks for them
    rank: tuple[float, int] = (NAN, 0)  # its place among all requests, set once by the scheduler; smaller goes first
    preemptions: int = 0
    finish_reason: str | None = None
    received_s: float = NAN
    drained_s: float = NAN
    scheduled_s: float = NAN
    emitted_first_s: float = NAN
    emitted_last_s: float = NAN
    done_s: float = NAN
    wait_since_s: float = NAN
    wait_total_s: float = 0.0
    wait_reason: WaitReason | None = None
    visible_step: int = -1

    @classmethod
    def from_request(cls, request: Request, eos_token_ids: frozenset[int] = frozenset()) -> Sequence:
        """A fresh sequence whose tokens are the request's prompt."""
        token_ids = list(request.prompt_token_ids)
        return cls(request, token_ids, len(token_ids), eos_token_ids)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """The gap: known tokens without keys and values in the cache."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def append_token(self, token_id: int, max_model_len: int) -> None:
        """Add a generated token and set ``finish_reason`` when it is the last one."""
        self.token_ids.append(token_id)
        params = self.request.params
        generated = len(self.token_ids) - self.num_prompt_tokens
        if generated >= params.min_tokens:
            is_end = token_id in self.eos_token_ids and not params.ignore_eos
            if is_end or token_id in params.stop_token_ids:
                self.finish_reason = "stop"
                return
        if generated >= params.max_tokens or len(self.token_ids) >= max_model_len:
            self.finish_reason = "length"
