"""Assumptions of the queue models, held against the run before a model is believed."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.arrivals import conditional_uniform_ks, lewis_ks
from analysis.predictions.base import Check
from analysis.queues.base import INDEPENDENT, PATIENT, POISSON

Array = NDArray[np.float64]

NOBODY_WAITS = "nobody waits for a seat"
SMALL_PREFILL = "prefill is a small part of the work"
MOST_WAITING = 0.05  # of the requests, when "nobody" waits
MOST_PREFILL = 0.2  # of the work, when it is small


def poisson(arrivals: Array, start: float, end: float) -> Check:
    """Two tests in one (Bonferroni): the conditional-uniform one sees a changing rate, Lewis's the law of the gaps."""
    inside = arrivals[(arrivals >= start) & (arrivals < end)]
    if inside.size < 10:
        return Check(POISSON, f"{inside.size} arrivals are too few to test", 1.0)
    uniform = conditional_uniform_ks(inside, start, end).p_value
    lewis = lewis_ks(inside, start, end).p_value
    smaller = min(1.0, 2 * min(uniform, lewis))
    return Check(POISSON, f"conditional-uniform p = {uniform:.2g}, Lewis p = {lewis:.2g}", smaller)


def independent_services(service: Array, gaps: Array) -> Check:
    """Successive service times uncorrelated with each other, and with the gap before each (rank correlation)."""
    if service.size < 10:
        return Check(INDEPENDENT, f"{service.size} service times are too few to test", 1.0)
    serial = _spearman(service[:-1], service[1:])
    crossed = _spearman(service[-gaps.size :], gaps)
    return Check(
        INDEPENDENT,
        f"rank correlation with the next {serial[0]:+.2f}, with the gap before {crossed[0]:+.2f}",
        min(1.0, 2 * min(serial[1], crossed[1])),
    )


def _spearman(x: Array, y: Array) -> tuple[float, float]:
    if np.ptp(x) == 0 or np.ptp(y) == 0:  # constants are independent of everything
        return 0.0, 1.0
    found = stats.spearmanr(x, y)
    return float(found.statistic), float(found.pvalue)


def patient(requests: pd.DataFrame) -> Check:
    """Nobody refused, failed, given up or preempted."""
    reasons = requests["finish_reason"]
    gone = int(reasons.isin(["refused", "failed", "aborted", "timeout"]).sum())
    preempted = int((requests["preemptions"].fillna(0) > 0).sum())
    finding = f"{gone} refused, failed or gone, {preempted} preempted"
    return Check(PATIENT, finding, holds=gone == 0 and preempted == 0)


def nobody_waits(requests: pd.DataFrame) -> Check:
    """The share of requests that waited for a seat or for memory (a wait for the next step is none)."""
    waited = requests["wait_reason"].isin(["seats", "kv"])
    share = float(waited.mean()) if len(requests) else math.nan
    return Check(NOBODY_WAITS, f"{share:.0%} of the requests did", holds=share <= MOST_WAITING)


def small_prefill(share: float) -> Check:
    """The share of the work (seconds of step time that a request adds) which is prefill."""
    return Check(SMALL_PREFILL, f"it is {share:.0%}", holds=share <= MOST_PREFILL)
