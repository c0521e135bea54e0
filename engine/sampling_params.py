"""How one request wants its tokens chosen and when it wants to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real


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
        stop: strings (or one) that end the output; they are not part of the text returned. For ``LLM`` alone.
        stop_token_ids: further token ids (or one) that end the output.
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
        object.__setattr__(self, "stop", _as_tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple(self.stop_token_ids))
        # The penalties' bounds leave every float32 logit finite.
        checks = (
            ("temperature", _is_within(self.temperature, 0.0, math.inf), "a finite number, at least 0"),
            ("top_k", _is_count(self.top_k, 0), "a whole number, at least 0 (0 keeps every token)"),
            ("top_p", _is_within(self.top_p, 0.0, 1.0) and self.top_p > 0.0, "in (0, 1]"),
            ("min_p", _is_within(self.min_p, 0.0, 1.0), "in [0, 1]"),
            ("seed", self.seed is None or isinstance(self.seed, Integral), "None or a whole number"),
            ("max_tokens", _is_count(self.max_tokens, 1), "a whole number, at least 1"),
            ("min_tokens", _is_count(self.min_tokens, 0), "a whole number, at least 0"),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "True or False"),
            ("stop", all(isinstance(each, str) and each for each in self.stop), "non-empty strings"),
            ("stop_token_ids", all(_is_count(each, 0) for each in self.stop_token_ids), "token ids"),
            ("repetition_penalty", _is_within(self.repetition_penalty, 0.01, 100.0), "in [0.01, 100]"),
            ("presence_penalty", _is_within(self.presence_penalty, -2.0, 2.0), "in [-2, 2]"),
            ("frequency_penalty", _is_within(self.frequency_penalty, -2.0, 2.0), "in [-2, 2]"),
            ("logprobs", self.logprobs is None or _is_count(self.logprobs, 0), "None or a whole number, at least 0"),
            ("n", _is_count(self.n, 1), "a whole number, at least 1"),
        )
        for name, holds, allowed in checks:
            if not holds:
                raise ValueError(f"SamplingParams.{name} is {getattr(self, name)!r}; it must be {allowed}")
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"SamplingParams.min_tokens is {self.min_tokens}, more than max_tokens = {self.max_tokens}"
            )

    @property
    def is_special(self) -> bool:
        """Whether the request wants more than a token drawn from the model's logits."""
        return self.min_tokens > 0 or self.logprobs is not None or self.has_penalties

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_within(value: object, least: float, most: float) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and least <= float(value) <= most


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
