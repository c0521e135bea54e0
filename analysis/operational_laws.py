"""Laws that hold for any queue, checked on a run: utilisation of a seat, what arrivals see, a closed loop's balance.

Each compares two quantities of different origin (the engine's gauge, its stamps, the client's stamps) and says by how much
they differ. Little's law has its own file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.areas import step_integral
from analysis.intervals import Estimate, TooShort, batch_means
from analysis.littles_law import Spans, finite_window
from analysis.runs import Run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UtilisationLaw:
    """One seat: the share of time its gauge shows it taken, against lam E[S], both over the same window."""

    busy: float  # from the gauge
    lam: float  # services a second seen in the window
    ES: float  # mean service within the window, scheduled to done, gaps between steps included; seconds
    difference: float  # busy - lam ES


def utilisation_law(run: Run, start: float | None = None, end: float | None = None) -> UtilisationLaw:
    """rho = lam E[S] for a run with one seat (Denning and Buzen, ACM Computing Surveys 10, 1978).

    Both edges are counted: a service that reaches over one counts with its part inside. Raises ValueError when more than
    one request ran at a time, when one was preempted, or without a gauge.
    """
    start, end = _window(run, start, end)
    t, running = _gauge(run, "running")
    if running.max(initial=0) > 1:
        raise ValueError(f"the utilisation law is for one seat; up to {running.max():g} requests ran at a time")
    if (run.requests["preemptions"].fillna(0) > 0).any():
        raise ValueError("the utilisation law wants uninterrupted services; requests were preempted")
    scheduled = run.requests["scheduled_s"].to_numpy(dtype=float)
    started = np.isfinite(scheduled)
    done = Spans.of(run.requests).done[started]
    service = finite_window(scheduled[started], np.maximum(done, scheduled[started]), start, end)
    busy = float(np.diff(step_integral(t, running, np.array([start, end])))[0]) / (end - start)
    return UtilisationLaw(busy, service.lam, service.W, busy - service.L)


@dataclass(frozen=True)
class Pasta:
    """Poisson arrivals see time averages: mean number in the engine just before an arrival, against the time average."""

    seen: float
    time_average: float
    difference: Estimate | TooShort  # seen - time average
    verdict: str  # "agrees", "differs", "too short: ..."


def pasta(run: Run, start: float | None = None, end: float | None = None, confidence: float = 0.95) -> Pasta:
    """Wolff 1982 (Operations Research 30). Arrivals that come in bursts see more than the time average, even ones less.

    The number is the gauge's just before each intended arrival. The interval is by batch means over stretches of equally many
    arrivals, each with its own time average, so that slow swings of the load cancel.
    """
    start, end = _window(run, start, end)
    t, number = _gauge(run, "inbox", "waiting", "running")
    intended = np.sort(run.requests["intended_s"].to_numpy(dtype=float))
    inside = intended[(intended >= start) & (intended < end)]
    before = np.searchsorted(t, inside, side="left") - 1
    seen = np.where(before >= 0, number[np.maximum(before, 0)], 0.0) if t.size else np.zeros(inside.size)
    average = float(np.diff(step_integral(t, number, np.array([start, end])))[0]) / (end - start)
    # One difference an arrival: what it saw less the mean over the gap that it ended, weighted by that gap.
    edges = np.concatenate([[start], inside])
    area = np.diff(step_integral(t, number, edges))
    gaps = np.diff(edges)
    difference: Estimate | TooShort
    if inside.size < 2:
        difference = TooShort("arrivals for PASTA", int(inside.size), 100)
    else:
        mean_gap = float(gaps.mean())
        level = float(area.sum() / gaps.sum())
        try:
            difference = batch_means((seen - level) - (area - level * gaps) / mean_gap, confidence)
        except TooShort as reason:
            difference = reason
    if isinstance(difference, TooShort):
        verdict = f"too short: {difference.reason}"
    else:
        verdict = "agrees" if difference.contains(0.0) else "differs"
    mean_seen = float(seen.mean()) if seen.size else float("nan")
    return Pasta(mean_seen, average, difference, verdict)


@dataclass(frozen=True)
class InteractiveLaw:
    """A closed loop: N = X (R + Z) (Denning and Buzen 1978), each side measured on its own."""

    N: int  # users, as configured
    X: float  # completions a second
    R: float  # mean response, intended to finished; seconds
    Z: float  # mean think time from one answer to the user's next request; seconds
    predicted_N: float
    relative_difference: float  # (X (R + Z) - N) / N


def interactive_law(run: Run, users: int, start: float | None = None, end: float | None = None) -> InteractiveLaw:
    """The response-time law on a run whose ``session_id`` tells the users apart.

    R is over the requests that finished in the window, Z over the thinks that ended in it. The law is exact only as the
    window grows: at both edges up to N cycles are cut. Raises ValueError without sessions or without a finished think.
    """
    if users < 1:
        raise ValueError(f"users must be at least 1, found {users}")
    start, end = _window(run, start, end)
    rows = run.requests
    if rows["session_id"].isna().any():
        raise ValueError(f"{rows['session_id'].isna().sum()} requests have no session_id: their user is unknown")
    rows = rows[["session_id", "intended_s", "finished_s"]].sort_values(["session_id", "intended_s"], kind="stable")
    intended = rows["intended_s"].to_numpy(dtype=float)
    finished = rows["finished_s"].to_numpy(dtype=float)
    same = rows["session_id"].to_numpy()[1:] == rows["session_id"].to_numpy()[:-1]
    think = (intended[1:] - finished[:-1])[same]
    ends = intended[1:][same]
    counted = np.isfinite(think) & (ends >= start) & (ends < end)
    completed = (finished >= start) & (finished < end)
    if not counted.any() or not completed.any():
        raise ValueError(f"no user both thought and was answered in [{start:.6g}, {end:.6g}]")
    X = float(np.count_nonzero(completed)) / (end - start)
    R = float((finished - intended)[completed].mean())
    Z = float(think[counted].mean())
    predicted = X * (R + Z)
    return InteractiveLaw(users, X, R, Z, predicted, predicted / users - 1)


def _window(run: Run, start: float | None, end: float | None) -> tuple[float, float]:
    if start is not None and end is not None:
        return start, end
    first, last = run.window
    return (first if start is None else start), (last if end is None else end)


def _gauge(run: Run, *columns: str) -> tuple[Array, Array]:
    if not run.recorded("gauge"):
        raise ValueError("the run has no gauge: this law compares it with the stamps")
    table = run.gauge.sort_values("t_s", kind="stable")
    return table["t_s"].to_numpy(dtype=float), table[list(columns)].to_numpy(dtype=float).sum(axis=1)
