"""Assumptions of the queue models, held against the run before a model is believed."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analysis.arrivals import conditional_uniform_ks, gap_correlation, lewis_ks
from analysis.predictions.base import Check
from analysis.queues.base import FCFS, INDEPENDENT, PATIENT, POISSON, RENEWAL
from analysis.runs import Run

Array = NDArray[np.float64]

POISSON_SESSIONS = "Poisson starts of sessions"
NOT_PREEMPTED = "nobody is preempted"
FEWEST = 10  # arrivals or services below which nothing is tested
NOBODY_WAITS = "nobody waits for a seat"
SMALL_PREFILL = "prefill is a small part of the work"
MOST_WAITING = 0.05  # of the requests, when "nobody" waits
MOST_PREFILL = 0.2  # of the work, when it is small


def process_of(run: Run) -> str:
    """The arrival process of the run: as its spec names it, or told by its sessions ("client-" in a closed loop)."""
    stated = ((run.meta.get("spec") or {}).get("arrivals") or {}).get("process")
    sessions = run.requests["session_id"].dropna().astype(str)
    if stated not in (None, "closed", "sessions") and sessions.empty:
        return str(stated)
    if sessions.empty:
        return str(stated or "open")
    return "closed" if sessions.str.startswith("client-").all() else "sessions"


def poisson_of(run: Run, sessions: bool) -> Check:
    """Poisson arrivals of a run. A closed loop never has them; sessions have them where their starts are, if the model
    forgives that turns wait for answers (``sessions``)."""
    process = process_of(run)
    if process == "closed":
        return Check(POISSON, "a closed loop: each arrival waits for an answer", holds=False)
    start, end = run.window
    if process == "sessions" and sessions:
        first = run.requests.groupby("session_id")["intended_s"].min().to_numpy(dtype=float)
        found = poisson(np.sort(first), start, end)
        return Check(POISSON_SESSIONS, found.finding, found.p_value)
    return poisson(run.requests["intended_s"].to_numpy(dtype=float), start, end)


def renewal(run: Run) -> Check:
    """Gaps between arrivals that do not depend on those before (lag-1 correlation)."""
    start, end = run.window
    intended = run.requests["intended_s"].to_numpy(dtype=float)
    inside = np.sort(intended[(intended >= start) & (intended < end)])
    if process_of(run) == "closed":
        return Check(RENEWAL, "a closed loop: each arrival waits for an answer", holds=False)
    if inside.size < 31:
        return Check(RENEWAL, f"{inside.size} arrivals are too few to test", 1.0)
    found = gap_correlation(inside)
    return Check(RENEWAL, f"correlation of neighbouring gaps {found.statistic:+.2f}", found.p_value)


def poisson(arrivals: Array, start: float, end: float) -> Check:
    """Two tests in one (Bonferroni): the conditional-uniform one sees a changing rate, Lewis's the law of the gaps."""
    inside = arrivals[(arrivals >= start) & (arrivals < end)]
    if inside.size < FEWEST:
        return Check(POISSON, f"{inside.size} arrivals are too few to test", 1.0)
    uniform = conditional_uniform_ks(inside, start, end).p_value
    lewis = lewis_ks(inside, start, end).p_value
    smaller = min(1.0, 2 * min(uniform, lewis))
    return Check(POISSON, f"conditional-uniform p = {uniform:.2g}, Lewis p = {lewis:.2g}", smaller)


def independent_services(service: Array, gaps: Array) -> Check:
    """Successive service times uncorrelated with each other, and with the gap before each (rank correlation)."""
    if service.size < FEWEST:
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


def never_preempted(requests: pd.DataFrame) -> Check:
    """Nobody lost its place and was computed anew."""
    preempted = int((requests["preemptions"].fillna(0) > 0).sum())
    return Check(NOT_PREEMPTED, f"{preempted} preempted", holds=preempted == 0)


def nobody_waits(requests: pd.DataFrame) -> Check:
    """The share of requests that waited for a seat or for memory (a wait for the next step is none)."""
    waited = requests["wait_reason"].isin(["seats", "kv"])
    share = float(waited.mean()) if len(requests) else math.nan
    return Check(NOBODY_WAITS, f"{share:.0%} of the requests did", holds=share <= MOST_WAITING)


def policy_of(run: Run) -> str:
    """The scheduling policy, as recorded."""
    facts = (run.meta.get("fingerprints") or {}).get("scheduling") or {}
    return str((run.meta.get("engine") or {}).get("policy", facts.get("policy", "fcfs")))


def first_come(run: Run) -> Check:
    """Whoever came first gets a seat first."""
    policy = policy_of(run)
    return Check(FCFS, f"the policy is {policy}", holds=policy in ("fcfs", "prefill_first"))


def small_prefill(share: float) -> Check:
    """The share of the work (seconds of step time that a request adds) which is prefill."""
    return Check(SMALL_PREFILL, f"it is {share:.0%}", holds=share <= MOST_PREFILL)
