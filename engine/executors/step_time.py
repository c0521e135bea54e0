"""The simplest model of a step's duration: linear in the batch's shape."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine.executors.base import BatchShape


@dataclass(frozen=True)
class LinearStepTime:
    """Seconds of a step: ``base_s`` plus a price for each decode row, prefill token, key read and logit row.

    The prices are in seconds per unit of the ``BatchShape`` field of the same name.
    """

    base_s: float = 0.0
    decode_seqs: float = 0.0
    prefill_tokens: float = 0.0
    kv_tokens: float = 0.0
    prefill_attention: float = 0.0
    logit_rows: float = 0.0

    @classmethod
    def from_mapping(cls, prices: Mapping[str, float]) -> LinearStepTime:
        """A model from named prices.

        Raises:
            ValueError: an unknown name (with a suggestion) or a negative price.
        """
        known = [price.name for price in fields(cls)]
        for name, value in prices.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise ValueError(f"unknown key {name!r} of step_time; {hint}allowed: {', '.join(known)}")
            if value < 0:
                raise ValueError(f"step_time.{name} is {value}; a price is at least 0")
        return cls(**prices)

    def __call__(self, shape: BatchShape) -> float:
        return (
            self.base_s
            + self.decode_seqs * shape.decode_seqs
            + self.prefill_tokens * shape.prefill_tokens
            + self.kv_tokens * shape.kv_tokens
            + self.prefill_attention * shape.prefill_attention
            + self.logit_rows * shape.logit_rows
        )
