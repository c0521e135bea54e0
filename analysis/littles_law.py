"""Little's law, L = lambda W, as two statements that are kept apart.

*Closure* is bookkeeping without statistics: the area under the engine's own gauge against the sum of the client's
sojourns, edges included. Two observers that saw the same run differ by the stamped stages outside the engine and by
nothing else. *Sampling* asks whether the run is long enough to say what L, lambda and W are. What is computed from one
observer alone is an identity, true of any list of intervals, and is called so (``finite_window``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis.areas import area_until, clipped, step_integral
from analysis.intervals import Estimate, TooShort, batch_means
from analysis.runs import Run

Array = NDArray[np.float64]

CLOSURE_TOLERANCE = 0.005  # of the gauge's area
PAUSE_S = (
    20e-3  # request-seconds: a machine that pauses once between a stamp and the gauge leaves a remainder like this,
)
STAMPING_S = 2e-4  # and the gauge is read this much after each stamp at most
CLOCK_TOLERANCE_S = 1e-3  # a stage below minus this, or a mean lateness above it, means that a clock is wrong
_DONE = ("stop", "length")
_ABORTED = ("aborted", "timeout")
_LAST_SEEN = ("done_s", "emitted_last_s", "last_token_s", "emitted_first_s", "first_token_s", "received_s", "sent_s")


@dataclass(frozen=True)
class FiniteWindow:
    """The identity L = lam W over one window: ``n`` customers were seen, ``area`` customer-seconds were spent inside."""

    L: float
    lam: float
    W: float
    area: float
    n: int
    start: float
    end: float


@dataclass(frozen=True)
class Counts:
    """Where every request of the run went. ``contradictions`` are rows whose reason and stamps exclude each other."""

    arrived: int
    finished: int
    refused: int
    failed: int
    aborted: int  # timeouts included
    in_flight: int
    contradictions: int

    @property
    def agree(self) -> bool:
        """arrived = finished + refused + failed + aborted + in flight, and no row contradicts itself."""
        ends = self.finished + self.refused + self.failed + self.aborted + self.in_flight
        return self.contradictions == 0 and self.arrived == ends


@dataclass(frozen=True)
class Closure:
    """Areas in request-seconds over [start, end]; ``remainder`` is what the stamped outside stages don't explain."""

    start: float
    end: float
    client_area: float
    gauge_area: float
    stages: dict[str, float]  # lag, cap_wait, transit_in, transit_out (client); waiting, running (gauge)
    remainder: float
    worst_stage_s: float  # smallest value of any stage of a request that ended normally: negative if clocks disagree
    lateness_s: float  # mean time a departure by the client's stamps precedes the gauge's
    counts: Counts
    verdict: str

    @property
    def remainder_share(self) -> float:
        """Remainder over the gauge's area (nan without one)."""
        return self.remainder / self.gauge_area if self.gauge_area > 0 else float("nan")

    @property
    def closed(self) -> bool:
        """Whether the verdict is "closed"."""
        return self.verdict == "closed"


@dataclass(frozen=True)
class Sampling:
    """L, lam and W of the process behind the run, each an interval or the reason why there is none.

    ``W_engine`` is W without the stages the gauge doesn't see (lag, transit): L is held against lam W_engine.
    """

    L: Estimate | TooShort
    lam: Estimate | TooShort
    W: Estimate | TooShort
    W_engine: Estimate | TooShort
    verdict: str


@dataclass(frozen=True)
class LittlesLaw:
    """``L`` time average of the gauge (of the client's stamps where there is none), ``lam`` arrivals a second, ``W`` mean
    of finished - intended, all in the window; ``verdict`` is the closure's, ``sampling.verdict`` stands beside it."""

    L: float
    lam: float
    W: float
    closure: Closure
    sampling: Sampling
    identity: FiniteWindow
    verdict: str


def finite_window(arrivals: ArrayLike, departures: ArrayLike, start: float, end: float) -> FiniteWindow:
    """Little's law over a window that need not begin or end empty: an identity, true of any set of intervals.

    As Little 2011 (Operations Research 59, "Little's law as viewed on its 50th anniversary"): who is inside at ``start``
    counts as arriving then, who is inside at ``end`` as leaving then. n is the number seen, lam = n / T, W = area / n the
    mean time spent *within the window*, L = area / T. A departure of nan (or inf) is still inside.
    """
    begin = np.asarray(arrivals, dtype=float)
    finish = np.where(np.isnan(departures := np.asarray(departures, dtype=float)), np.inf, departures)
    if begin.shape != finish.shape or begin.ndim != 1:
        raise ValueError(f"arrivals and departures must be two equal series, found {begin.shape} and {finish.shape}")
    if not np.isfinite(begin).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(begin))} arrivals are nan or infinite")
    if (finish < begin).any():
        raise ValueError(f"{np.count_nonzero(finish < begin)} departures precede their arrivals")
    _check_window(start, end)
    area = float(clipped(begin, finish, start, end).sum())
    seen = ((begin < end) & (finish > start)) | ((begin == finish) & (begin >= start) & (begin < end))
    n = int(np.count_nonzero(seen))
    duration = end - start
    return FiniteWindow(area / duration, n / duration, area / n if n else float("nan"), area, n, start, end)


def littles_law(run: Run, start: float | None = None, end: float | None = None) -> LittlesLaw:
    """Closure and sampling over [start, end] seconds (default: the run's measure window)."""
    if start is None or end is None:
        first, last = run.window
        start, end = (first if start is None else start), (last if end is None else end)
    _check_window(start, end)
    spans = Spans.of(run.requests)
    closed = closure(run, start, end, spans)
    identity = finite_window(spans.intended, np.maximum(spans.finished, spans.intended), start, end)
    inside = (spans.intended >= start) & (spans.intended < end)
    sojourns = (spans.finished - spans.intended)[inside]
    mean = float(sojourns.mean()) if sojourns.size else float("nan")
    level = closed.gauge_area / (end - start) if run.recorded("gauge") else identity.L
    return LittlesLaw(
        L=level,
        lam=float(np.count_nonzero(inside)) / (end - start),
        W=mean,  # inf as long as one of them is still inside: a mean can't be known then
        closure=closed,
        sampling=sampling(run, start, end, spans),
        identity=identity,
        verdict=closed.verdict,
    )


@dataclass(frozen=True)
class Spans:
    """The borders between a request's stages, every one of them filled in.

    What has not happened yet lies at +inf. A request that ended without some stamp gets the border where it was last
    seen: one that was never sent spent its life in the generator, one refused or failed without a receipt in transit.
    """

    intended: Array
    sent: Array
    received: Array
    done: Array
    finished: Array
    normal: NDArray[np.bool_]  # ended by itself: its stages must be in order

    @classmethod
    def of(cls, requests: pd.DataFrame) -> Spans:
        """From the rows of a requests table; raises ValueError when an intended arrival is missing."""

        def column(name: str) -> Array:
            return requests[name].to_numpy(dtype=float, na_value=np.nan)

        intended = column("intended_s")
        if np.isnan(intended).any():
            raise ValueError(f"{np.count_nonzero(np.isnan(intended))} requests have no intended arrival")
        reason = requests["finish_reason"]
        ended = reason.notna().to_numpy(dtype=bool) | ~np.isnan(column("finished_s"))
        seen = np.fmax.reduce([column(name) for name in _LAST_SEEN] + [intended])
        finished = _filled(column("finished_s"), np.where(ended, seen, np.inf))
        sent = _filled(column("sent_s"), finished)
        # The client learns when the engine received a request from the engine's answer: while that has not come, the
        # gauge counts the request already, and it was received when it was sent but for the transit.
        never_entered = reason.isin(["refused", "failed"]).to_numpy(dtype=bool)
        received = _filled(column("received_s"), np.where(never_entered, finished, sent))
        done = _filled(column("done_s"), finished)
        return cls(intended, sent, received, done, finished, reason.isin(_DONE).to_numpy(dtype=bool))

    def worst_stage(self) -> float:
        """The smallest stage of any request that ended normally (inf when there is none)."""
        borders = np.stack([self.intended, self.sent, self.received, self.done, self.finished])[:, self.normal]
        return float(np.diff(borders, axis=0).min()) if borders.shape[1] else float("inf")


def count(requests: pd.DataFrame) -> Counts:
    """Where the requests went, by finish reason, held against their stamps."""
    reason = requests["finish_reason"]
    finished = requests["finished_s"].notna()
    done = reason.isin(_DONE)
    known = done | reason.isin(["refused", "failed", *_ABORTED]) | reason.isna()
    wrong = ~known | (done & ~finished) | (reason.isna() & finished) | requests["request_id"].duplicated()
    return Counts(
        arrived=len(requests),
        finished=int(done.sum()),
        refused=int((reason == "refused").sum()),
        failed=int((reason == "failed").sum()),
        aborted=int(reason.isin(_ABORTED).sum()),
        in_flight=int(reason.isna().sum()),
        contradictions=int(wrong.sum()),
    )


def closure(run: Run, start: float, end: float, spans: Spans | None = None) -> Closure:
    """The bookkeeping over one window.

    "closed" when the counts agree, no stage of a request that ended normally is below minus 1 ms, the client's path never
    runs below the gauge's by more than 1 ms a departure (both would mean a wrong clock), and the remainder is at most
    0.5 % of the gauge's area. Otherwise "open: " with every reason; "not testable: ..." without a gauge. "too short: ..."
    where the remainder is more but no larger than what one pause of the machine, or the time from each request's stamp to
    its reading, leaves: so little was measured that 0.5 % of it is nothing.
    """
    spans = Spans.of(run.requests) if spans is None else spans
    requests = run.requests
    client = clipped(spans.intended, spans.finished, start, end).sum()
    cap_end = np.minimum(spans.intended + np.nan_to_num(requests["cap_wait"].to_numpy(dtype=float)), spans.sent)
    stages = {
        "lag": float(clipped(cap_end, spans.sent, start, end).sum()),
        "cap_wait": float(clipped(spans.intended, cap_end, start, end).sum()),
        "transit_in": float(clipped(spans.sent, spans.received, start, end).sum()),
        "transit_out": float(clipped(spans.done, spans.finished, start, end).sum()),
    }
    explained = sum(stages.values())
    counts, worst = count(requests), spans.worst_stage()
    if not run.recorded("gauge"):
        verdict = "not testable: the target has no gauge"
        unknown = float("nan")
        return Closure(start, end, float(client), unknown, stages, unknown, worst, unknown, counts, verdict)
    gauge = run.gauge
    t = gauge["t_s"].to_numpy(dtype=float)
    waiting = gauge["inbox"].to_numpy(dtype=float) + gauge["waiting"].to_numpy(dtype=float)
    running = gauge["running"].to_numpy(dtype=float)
    edges = np.array([start, end])
    stages["waiting"] = float(np.diff(step_integral(t, waiting, edges))[0])
    stages["running"] = float(np.diff(step_integral(t, running, edges))[0])
    area = stages["waiting"] + stages["running"]
    remainder = float(client) - explained - area
    lateness = _lateness(spans, t, waiting + running, start, end)
    reasons = []
    if not counts.agree:
        reasons.append(f"counts disagree ({counts})")
    if worst < -CLOCK_TOLERANCE_S:
        reasons.append(f"a stage of {1e3 * worst:.3g} ms: the client's and the engine's clocks disagree")
    if lateness > CLOCK_TOLERANCE_S and lateness * counts.finished > PAUSE_S:
        reasons.append(f"requests leave the gauge {1e3 * lateness:.3g} ms after they left the client, on average")
    share = (
        f"remainder {100 * remainder / area:+.2f} % of the gauge's area" if area > 0 else f"{remainder:+.3g} request-s"
    )
    is_large = abs(remainder) > CLOSURE_TOLERANCE * area
    is_noise = abs(remainder) <= max(PAUSE_S, STAMPING_S * counts.arrived)
    if is_large and not is_noise:
        reasons.append(share)
    if reasons:
        verdict = f"open: {'; '.join(reasons)}"
    elif is_large:
        verdict = (
            f"too short: {share}, but only {1e3 * remainder:+.2g} request-ms, which one pause of the machine makes"
        )
    else:
        verdict = "closed"
    return Closure(start, end, float(client), area, stages, remainder, worst, lateness, counts, verdict)


def sampling(run: Run, start: float, end: float, spans: Spans | None = None, confidence: float = 0.95) -> Sampling:
    """L, lam and W with intervals by batch means over the window, and L against lam W.

    "agrees" when L and lam W_engine differ by no more than their half-widths together (they are correlated, so that is
    generous), "differs", "too short: ..." or "not testable: ...".
    """
    spans = Spans.of(run.requests) if spans is None else spans
    inside = np.flatnonzero((spans.intended >= start) & (spans.intended < end))
    inside = inside[np.argsort(spans.intended[inside], kind="stable")]
    cells = int(np.clip(inside.size, 1, 2000))
    edges = np.linspace(start, end, cells + 1)
    width = (end - start) / cells
    arrivals = np.histogram(spans.intended[inside], bins=edges)[0] / width
    lam = _estimate(arrivals, confidence)
    W = _estimate((spans.finished - spans.intended)[inside], confidence)
    with np.errstate(invalid="ignore"):  # inf - inf: never sent, still inside
        W_engine = _estimate((spans.done - spans.received)[inside], confidence)
    if not run.recorded("gauge"):
        reason = TooShort("the target has no gauge", 0)
        return Sampling(reason, lam, W, W_engine, "not testable: the target has no gauge")
    number = run.gauge[["inbox", "waiting", "running"]].to_numpy(dtype=float).sum(axis=1)
    L = _estimate(np.diff(step_integral(run.gauge["t_s"].to_numpy(dtype=float), number, edges)) / width, confidence)
    for name, value in (("L", L), ("lambda", lam), ("W", W_engine)):
        if isinstance(value, TooShort):
            return Sampling(L, lam, W, W_engine, f"too short for {name}: {value.reason}")
    assert isinstance(L, Estimate)
    assert isinstance(lam, Estimate)
    assert isinstance(W_engine, Estimate)
    room = L.half_width + lam.half_width * W_engine.mean + lam.mean * W_engine.half_width
    agree = abs(L.mean - lam.mean * W_engine.mean) <= room
    return Sampling(L, lam, W, W_engine, "agrees" if agree else "differs")


def by_subwindow(run: Run, windows: int, start: float | None = None, end: float | None = None) -> pd.DataFrame:
    """The closure in ``windows`` equal parts: start_s, end_s, client_area, gauge_area, outside, remainder, share, L."""
    if windows < 1:
        raise ValueError(f"windows must be at least 1, found {windows}")
    first, last = run.window if start is None or end is None else (start, end)
    edges = np.linspace(first if start is None else start, last if end is None else end, windows + 1)
    spans = Spans.of(run.requests)
    client = np.diff(area_until(spans.intended, spans.finished, edges))
    engine = np.diff(area_until(spans.received, spans.done, edges))
    if run.recorded("gauge"):
        number = run.gauge[["inbox", "waiting", "running"]].to_numpy(dtype=float).sum(axis=1)
        gauge = np.diff(step_integral(run.gauge["t_s"].to_numpy(dtype=float), number, edges))
    else:
        gauge = np.full(windows, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (engine - gauge) / gauge
    return pd.DataFrame(
        {
            "start_s": edges[:-1],
            "end_s": edges[1:],
            "client_area": client,
            "gauge_area": gauge,
            "outside": client - engine,
            "remainder": engine - gauge,
            "share": share,
            "L": gauge / np.diff(edges),
        }
    )


def _lateness(spans: Spans, t: Array, number: Array, start: float, end: float) -> float:
    """Mean seconds a departure by which the client's path [sent, finished] lies below the gauge's: 0 with right clocks."""
    leave = np.maximum(spans.finished, np.where(spans.normal, spans.finished, spans.done))
    order = np.argsort(t, kind="stable")
    t, number = t[order], number[order]
    if t.size == 0:
        return 0.0
    times = np.concatenate([spans.sent, leave, t])
    change = np.concatenate([np.ones(len(spans.sent)), -np.ones(len(leave)), -np.diff(number, prepend=0.0)])
    kept = np.isfinite(times)
    times, change = times[kept], change[kept]
    order = np.argsort(times, kind="stable")
    times, difference = times[order], np.cumsum(change[order])
    length = np.diff(np.clip(np.append(times, np.inf), start, end))
    below = float(np.sum(np.maximum(-difference, 0.0) * length))
    departures = int(np.count_nonzero((leave >= start) & (leave < end)))
    return below / max(departures, 1)


def _filled(stamps: Array, otherwise: Array) -> Array:
    return np.where(np.isnan(stamps), otherwise, stamps)


def _estimate(series: Array, confidence: float) -> Estimate | TooShort:
    inside = int(np.count_nonzero(~np.isfinite(series)))
    if inside:
        return TooShort(f"{inside} requests are still inside", int(series.size))
    try:
        return batch_means(series, confidence)
    except TooShort as reason:
        return reason


def _check_window(start: float, end: float) -> None:
    if not end > start:
        raise ValueError(f"the window must end after it starts, found [{start}, {end}]")
