"""How one request wants its tokens chosen and when it wants to stop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request.

    Attributes:
        temperature: 0 means greedy (argmax); otherwise logits are divided by it.
        top_k: keep the ``top_k`` most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches ``top_p``.
        min_p: drop tokens less likely than ``min_p`` times the most likely one.
        seed: seed of this request's own random stream; ``None`` derives one from the engine's seed
            and the request id. Draws never depend on what else is in the batch.
        max_tokens: tokens to generate at most (at least 1).
        min_tokens: before this many tokens no end-of-sequence or stop token is accepted.
        ignore_eos: go on after the end-of-sequence token (pins the length to ``max_tokens``).
        stop: strings that end the output; they are not part of the text returned.
        stop_token_ids: further token ids that end the output.

    Raises:
        ValueError: a value is out of range; the message names it and the range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 64
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        checks = (
            (self.temperature >= 0.0, "temperature", self.temperature, "at least 0"),
            (self.top_k >= 0, "top_k", self.top_k, "at least 0 (0 keeps every token)"),
            (0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]"),
            (0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "in [0, 1]"),
            (self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1"),
            (0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "between 0 and max_tokens"),
            ("" not in self.stop, "stop", self.stop, "non-empty strings"),
        )
        for holds, name, value, allowed in checks:
            if not holds:
                raise ValueError(f"SamplingParams.{name} is {value!r}; it must be {allowed}")
