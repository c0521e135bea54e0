"""A batching engine's own closed forms: time to first token when nobody waits for a seat, and the rates it can sustain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from analysis.queues.base import POISSON, not_negative, positive, quantile_of_tail

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FirstToken:
    """TTFT where nobody waits for a seat: the rest of the step in progress, then the step(s) with the own prompt.

    Args:
        steps: durations of the engine's steps (s), the gap behind each included, shape (n,).
        busy: share of time inside them, in [0, 1].
        prefill: seconds of the step(s) that compute the prompt: a number, or one for each request.

    A Poisson arrival falls into a step with probability ``busy`` and into long ones more often: the rest of it lasts
    E[s^2] / (2 E[s]) on average and more than t with probability E[(s - t)+] / E[s] (inspection paradox; Kleinrock I, 1975,
    section 5.2). Mean TTFT = busy E[s^2] / (2 E[s]) + E[prefill]. Fails as soon as requests wait for seats, budget or memory.

    >>> q = FirstToken(steps=[0.02, 0.02, 0.08], busy=0.5, prefill=0.03)
    >>> round(q.wait, 6), round(q.mean, 6), round(q.tail(0.05), 6)        # half of a mean step would be only 0.02
    (0.015, 0.045, 0.25)
    """

    steps: ArrayLike
    busy: float
    prefill: ArrayLike
    assumptions: ClassVar[tuple[str, ...]] = (
        POISSON,
        "nobody waits for a seat",
        "the prompt fits into the budget of the step after arrival",
    )

    def __post_init__(self) -> None:
        steps, prefill = self._steps, self._prefill
        if steps.ndim != 1 or steps.size == 0 or not (np.isfinite(steps) & (steps > 0)).all():
            raise ValueError("steps: give one series of finite durations above 0 s")
        if prefill.ndim != 1 or prefill.size == 0 or not (np.isfinite(prefill) & (prefill >= 0)).all():
            raise ValueError("prefill: give finite seconds, 0 or above")
        if not 0 <= self.busy <= 1:
            raise ValueError(f"busy = {self.busy!r}: give a share of time between 0 and 1")

    @cached_property
    def _steps(self) -> Floats:
        return np.asarray(self.steps, dtype=np.float64)

    @cached_property
    def _prefill(self) -> Floats:
        return np.atleast_1d(np.asarray(self.prefill, dtype=np.float64))

    @property
    def wait(self) -> float:
        """Mean seconds until the step in progress ends."""
        return self.busy * float(np.mean(self._steps**2) / (2.0 * np.mean(self._steps)))

    @property
    def mean(self) -> float:
        """Mean TTFT (s)."""
        return self.wait + float(self._prefill.mean())

    def tail(self, t: float) -> float:
        """P(TTFT > t)."""
        rest = t - self._prefill
        over = np.maximum(self._steps[None, :] - np.maximum(rest, 0.0)[:, None], 0.0).mean(axis=1)
        waits = self.busy * over / self._steps.mean()
        return float(np.where(rest < 0, 1.0, waits).mean())

    def quantile(self, q: float) -> float:
        """Smallest t (s) with P(TTFT <= t) >= q."""
        return quantile_of_tail(self.tail, q, self.mean)


def seat_limit(seats: float, output_tokens: float, step_s: float) -> float:
    """Requests per second with ``seats`` always taken: seats / (E[output] step(seats)), one token a step each.

    Args:
        seats: sequences in the batch, above 0.
        output_tokens: mean tokens of an answer.
        step_s: seconds of a step with so many, prompts' share included.

    The utilisation law with every seat taken (Denning and Buzen, ACM Computing Surveys 10, 1978). Fails where the cache or
    the budget keeps seats empty: ``EngineLimits`` takes the smallest.

    >>> seat_limit(16, 24.0, 0.05)
    13.333333333333332
    """
    return positive("seats", seats) / (positive("output_tokens", output_tokens) * positive("step_s", step_s))


def kv_limit(blocks: float, blocks_per_request: float, seconds_per_request: float) -> float:
    """Requests per second that a KV cache sustains: lam < M / (b E[g]), by Little's law for the blocks in use.

    Args:
        blocks: M, blocks of the cache.
        blocks_per_request: b, mean blocks held while in the cache (averaged over time).
        seconds_per_request: E[g], mean time in the cache, at the batch that M / b gives.

    Little 1961. Fails once requests are preempted: then work is done twice and the limit is lower.

    >>> kv_limit(1000, 20, 2.0)
    25.0
    """
    held = positive("blocks_per_request", blocks_per_request) * positive("seconds_per_request", seconds_per_request)
    return positive("blocks", blocks) / held


def budget_limit(prompt_tokens: float, output_tokens: float, budget: float, full_step_s: float) -> float:
    """Requests per second that a token budget sustains: lam (m_p + m_d) < b / t_b.

    Args:
        prompt_tokens, output_tokens: mean tokens to compute of a prompt, and of an answer (its first comes with the prompt).
        budget: b, tokens of a full step.
        full_step_s: t_b, seconds of a full step.

    Work in must stay below work out. Fails where full steps are never reached, because seats or cache are taken first.

    >>> budget_limit(100.0, 28.0, 256, 0.1)
    20.0
    """
    tokens = not_negative("prompt_tokens", prompt_tokens) + positive("output_tokens", output_tokens)
    return positive("budget", budget) / (positive("full_step_s", full_step_s) * tokens)


@dataclass(frozen=True)
class EngineLimits:
    """The three bounds of one request mix on one engine (1/s); the smallest is where it saturates.

    ``seat_limit``, ``kv_limit``, ``budget_limit``. Fails where two of them bind in turn: then the true limit is lower.

    >>> limits = EngineLimits(seats=13.3, kv=25.0, budget=20.0)
    >>> limits.binding, limits.saturation, limits.stable(12.0)
    ('seats', 13.3, True)
    """

    seats: float
    kv: float = math.inf
    budget: float = math.inf

    @property
    def binding(self) -> str:
        """``seats``, ``kv`` or ``budget``."""
        return min(("seats", "kv", "budget"), key=lambda name: float(getattr(self, name)))

    @property
    def saturation(self) -> float:
        """Completions per second under a permanent backlog."""
        return min(self.seats, self.kv, self.budget)

    def stable(self, lam: float) -> bool:
        """Whether ``lam`` arrivals per second leave the backlog bounded."""
        return lam < self.saturation
