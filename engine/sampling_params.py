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
        min_tokens: before this many output tokens no end-of-sequence token (also with ``ignore_eos``) and no token of
            ``stop_token_ids`` is drawn, and no stop string ends the output.
        ignore_eos: go on after the end-of-sequence token (pins the length to ``max_tokens``).
        stop: strings that end the output; they are not part of the text returned. For ``LLM`` alone.
        stop_token_ids: further token ids that end the output.
        repetition_penalty: r > 1 disfavours every token of prompt and output: its logit l becomes l / r where l > 0 and
            l * r elsewhere (Keskar et al. 2019, as transformers and vLLM have it).
        presence_penalty: taken off the logit of every token that the output has.
        frequency_penalty: taken off the logit of a token once for every time that the output has it. As in vLLM the
            three come before greedy choice, temperature and filters, and negative ones favour.
        logprobs: give the log-probability of every output token and of this many likeliest ones, from the model's own
            distribution (no penalty, temperature or filter), as vLLM; ``None`` gives none. For ``LLM`` alone.
        n: samples of the prompt, each a request with a stream of its own. For ``LLM`` alone.

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
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    n: int = 1

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
            # Bounds that leave every float32 logit finite.
            (0.01 <= self.repetition_penalty <= 100.0, "repetition_penalty", self.repetition_penalty, "in [0.01, 100]"),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", self.presence_penalty, "in [-2, 2]"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", self.frequency_penalty, "in [-2, 2]"),
            (self.logprobs is None or _is_count(self.logprobs, 0), "logprobs", self.logprobs, "None or at least 0"),
            (_is_count(self.n, 1), "n", self.n, "a whole number, at least 1"),
        )
        for holds, name, value, allowed in checks:
            if not holds:
                raise ValueError(f"SamplingParams.{name} is {value!r}; it must be {allowed}")

    @property
    def is_special(self) -> bool:
        """Whether the request wants more than a token drawn from the model's logits."""
        return self.min_tokens > 0 or self.logprobs is not None or self.has_penalties

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
