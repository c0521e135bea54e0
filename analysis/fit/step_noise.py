"""What a step-time model leaves over, kept so that a simulation can replay it: in blocks, because residuals drift.

A step's duration is ``predicted * ratio + extra_s``. Ordinary scatter scales with the step (``ratio``); a stolen processor
does not (``extra_s``, zero but for the steps that the fit set aside). ``gap_ratio`` is the pause after it over its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_BLOCK = 16


@dataclass(frozen=True)
class StepNoise:
    """Residuals of the fitted steps, in their order; three arrays of one length.

    Attributes:
        ratio: measured over predicted duration; 1 for steps that were set aside as slow.
        extra_s: measured minus predicted duration of the steps set aside as slow, 0 for all others; never negative.
        gap_ratio: time from the end of the step to the start of the next over what the model says of it, 1 on average; where
            the engine had nothing to do in between, the ratio found last before (the mean where none was).
        block: steps of a block in resampling.
    """

    ratio: Floats
    extra_s: Floats
    gap_ratio: Floats
    block: int

    def __len__(self) -> int:
        return len(self.ratio)

    def stream(self, rng: np.random.Generator) -> NoiseStream:
        """An endless resample of blocks (moving block bootstrap, Kuensch, Annals of Statistics 17, 1989, circular)."""
        return NoiseStream(self, rng)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio.tolist(),
            "extra_s": self.extra_s.tolist(),
            "gap_ratio": self.gap_ratio.tolist(),
            "block": self.block,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepNoise:
        ratio, extra_s, gap_ratio = (np.asarray(data[name], dtype=float) for name in ("ratio", "extra_s", "gap_ratio"))
        return cls(ratio, extra_s, gap_ratio, int(data["block"]))


class NoiseStream:
    """Gives ``(ratio, extra_s, gap_ratio)`` step after step."""

    def __init__(self, noise: StepNoise, rng: np.random.Generator) -> None:
        self._rows = list(zip(noise.ratio.tolist(), noise.extra_s.tolist(), noise.gap_ratio.tolist(), strict=True))
        self._block = min(noise.block, len(self._rows))
        self._rng = rng
        self._at = 0
        self._left = 0

    def next(self) -> tuple[float, float, float]:
        if not self._left:
            self._at = int(self._rng.integers(len(self._rows)))
            self._left = self._block
        row = self._rows[self._at]
        self._at = (self._at + 1) % len(self._rows)
        self._left -= 1
        return row


def filled_gaps(gaps: Floats) -> Floats:
    """``gaps`` with each nan replaced by the last value before it (the mean where none is; 0 where all are nan)."""
    known = ~np.isnan(gaps)
    if not known.any():
        return np.zeros_like(gaps)
    last = np.maximum.accumulate(np.where(known, np.arange(len(gaps)), -1))
    return np.where(last >= 0, gaps[last], gaps[known].mean())
