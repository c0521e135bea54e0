"""How far a step-time model is from measured steps, term by term, and how far the textbook's straight line is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHAPE_TERMS = ("decode_seqs", "kv_tokens", "prefill_tokens", "prefill_attention", "prefill_seqs", "logit_rows")


@dataclass(frozen=True)
class Misfit:
    """How a model misses steps, relative to the measured duration: scatter and bias apart.

    ``rms`` (of the relative errors) and ``bias`` (predicted over measured time of all together, minus 1) are over the ``n``
    steps that were not set aside. ``total`` is the predicted over the measured
    time of *all* steps, minus 1. ``by_term`` gives for the steps in which a term is present (``decode_seqs``, ...) and for
    the classes ``decode only``, ``prefill only``, ``mixed`` and ``after idle`` their count, rms and bias.
    """

    rms: float
    bias: float
    total: float
    n: int
    set_aside: int
    by_term: dict[str, dict[str, float]]

    def __str__(self) -> str:
        return (
            f"rms {100 * self.rms:.2g} %, bias {100 * self.bias:+.2g} %, {self.n} steps, {self.set_aside} set aside "
            f"(total time {100 * self.total:+.2g} %)"
        )


@dataclass(frozen=True)
class TextbookFit:
    """Least squares of duration on a + b·n, n the requests in the batch, over the ``n`` steps that decode only (all steps
    where there is none), without those set aside."""

    a_s: float
    b_s: float
    rms: float
    bias: float
    n: int

    def __str__(self) -> str:
        return f"{1e3 * self.a_s:.4g} ms + {1e3 * self.b_s:.4g} ms · n: rms {100 * self.rms:.2g} %"


def misfit(steps: pd.DataFrame, duration: Floats, predicted: Floats, kept: NDArray[np.bool_]) -> Misfit:
    """Predicted against measured seconds of ``steps``; ``kept`` marks those that were not set aside."""
    decodes = steps["decode_seqs"].to_numpy(dtype=float) > 0
    prefills = steps["prefill_tokens"].to_numpy(dtype=float) > 0
    groups = {term: steps[term].to_numpy(dtype=float) > 0 for term in SHAPE_TERMS}
    groups |= {"decode only": decodes & ~prefills, "prefill only": prefills & ~decodes, "mixed": prefills & decodes}
    if "idle_s" in steps:
        groups["after idle"] = steps["idle_s"].to_numpy(dtype=float) > 0
    by_term = {name: _error(predicted[inside & kept], duration[inside & kept]) for name, inside in groups.items()}
    whole = _error(predicted[kept], duration[kept])
    return Misfit(
        rms=whole["rms"],
        bias=whole["bias"],
        total=float(predicted.sum() / duration.sum() - 1.0),
        n=int(kept.sum()),
        set_aside=int((~kept).sum()),
        by_term=by_term,
    )


def _error(predicted: Floats, duration: Floats) -> dict[str, float]:
    if not len(duration):
        return {"n": 0, "rms": math.nan, "bias": math.nan}
    error = predicted / duration - 1.0
    bias = float(predicted.sum() / duration.sum() - 1.0)
    return {"n": len(error), "rms": float(np.sqrt(np.mean(error**2))), "bias": bias}


def textbook(steps: pd.DataFrame, duration: Floats, kept: NDArray[np.bool_]) -> TextbookFit:
    """The straight line through ``kept`` steps; see :class:`TextbookFit`."""
    decode_only = kept & (steps["prefill_seqs"] == 0).to_numpy()
    used = decode_only if decode_only.any() else kept
    requests = (steps["decode_seqs"] + steps["prefill_seqs"]).to_numpy(dtype=float)[used]
    if requests.min() == requests.max():  # one batch size shows no slope
        a, b = float(duration[used].mean()), 0.0
    else:
        b, a = (float(value) for value in np.polyfit(requests, duration[used], 1))
    error = _error(a + b * requests, duration[used])
    return TextbookFit(a, b, error["rms"], error["bias"], len(requests))
