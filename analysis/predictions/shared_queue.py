"""A batch as a shared server: its total speed with n inside, and an event simulation of who leaves when.

Total speed with n in system is phi(n) = n / step(n) tokens a second, step(n) from the calibration's fit. Prompts are
charged to everybody: at the mean rate of completions a step carries n / E[output] prefills.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.step_time import StepTimeModel
from analysis.runs import Run
from analysis.study import seats_of
from engine.executors.base import BatchShape

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ENDED = ("stop", "length")


@dataclass(frozen=True)
class SharedSpeed:
    """Tokens a second with n in system, for the lengths of one run; ``prefill_share`` of its work is prefill."""

    model: StepTimeModel
    seats: int
    mean_output: float
    context: float  # mean context of a decode row
    prompt: float  # mean prompt tokens to compute
    attention: float  # mean of prompt^2 / 2

    def __call__(self, n: int) -> float:
        """phi(n), n counted up to the seats."""
        rows = min(n, self.seats)
        return rows / (self.decode_step(rows) + rows / self.mean_output * self.prefill(rows))

    def decode_step(self, rows: int) -> float:
        """Seconds of a step of ``rows`` decodes, with the gap behind it."""
        shape = BatchShape(0, rows, 0, rows, round(rows * self.context), 0.0, rows)
        return self._compute(shape) + self.model.gap(shape)

    def prefill(self, rows: int) -> float:
        """Seconds that one prompt adds to a step in place of a decode."""
        mixed = self._mixed(rows, self.prompt, self.attention)
        return max(0.0, self._compute(mixed) + self.model.gap(mixed) - self.decode_step(rows))

    def first_step(self, rows: int, prompt: float, attention: float) -> float:
        """Seconds of a step of one prompt and ``rows - 1`` decodes, until its tokens are out (no gap behind it)."""
        return self._compute(self._mixed(rows, prompt, attention))

    def further_prompt(self, rows: int) -> float:
        """Seconds that a mean prompt adds to a step of one prompt and ``rows - 1`` decodes."""
        both = self._mixed(rows + 1, 2 * self.prompt, 2 * self.attention, prompts=2)
        return max(0.0, self._compute(both) - self.first_step(rows, self.prompt, self.attention))

    def _mixed(self, rows: int, prompt: float, attention: float, prompts: int = 1) -> BatchShape:
        others = rows - prompts
        return BatchShape(prompts, others, round(prompt), others, round(others * self.context), attention, rows)

    def _compute(self, shape: BatchShape) -> float:
        return self.model(shape) * self.model.time_factor

    def prefill_share(self, rows: int) -> float:
        """The share of a request's work that is its prompt, with ``rows`` in the batch."""
        prefill = self.prefill(rows)
        return prefill / (prefill + self.mean_output * self.decode_step(rows) / rows)


def shared_speed(run: Run, model: StepTimeModel) -> SharedSpeed:
    """phi for the lengths that ``run`` really had."""
    done = run.requests[run.requests["finish_reason"].isin(ENDED)]
    output = done["output_tokens"].to_numpy(dtype=float)
    prompt = done["prompt_tokens"].to_numpy(dtype=float) - np.nan_to_num(done["cached_tokens"].to_numpy(dtype=float))
    whole = done["prompt_tokens"].to_numpy(dtype=float)
    return SharedSpeed(
        model=model,
        seats=seats_of(run) or 1,
        mean_output=float(output.mean()),
        context=float(np.sum(output * (whole + output / 2)) / output.sum()),
        prompt=float(prompt.mean()),
        attention=float(np.mean(prompt * (whole - prompt / 2))),
    )


def sizes_of(run: Run) -> Array:
    """Output tokens of every request of the run; of one that did not end, what it was allowed."""
    allowed = run.requests["max_tokens"].to_numpy(dtype=float)
    ended = run.requests["finish_reason"].isin(ENDED).to_numpy(dtype=bool)
    return np.where(ended, run.requests["output_tokens"].to_numpy(dtype=float), allowed)


@dataclass(frozen=True)
class Visits:
    """When each request came, was admitted to a seat, and left (s), in the order of the given arrays."""

    arrived: Array
    admitted: Array
    left: Array

    @property
    def sojourn(self) -> Array:
        """From arrival to departure."""
        return self.left - self.arrived

    @property
    def wait(self) -> Array:
        """For a seat."""
        return self.admitted - self.arrived


def share(
    arrivals: Array,
    sizes: Array,
    speed: Callable[[int], float],
    seats: int | None = None,
    follows: Indices | None = None,
    think: Array | None = None,
) -> Visits:
    """Everybody with a seat shares ``speed(n)`` equally; the others wait first come first served.

    All with a seat advance alike, so the next to leave is the one with the smallest size left: a heap over the common
    progress.

    Args:
        arrivals: times (s), any order; nan for a request that comes only after another's end.
        sizes: work of each, in the unit of the speed.
        speed: n = 1, 2, ... taken seats -> total work a second.
        seats: most at once (None: all).
        follows: index of the request that comes ``think`` seconds after this one has left; -1: none.
    """
    came, admitted, left = arrivals.astype(float).copy(), np.full(arrivals.size, np.nan), np.full(arrivals.size, np.nan)
    due = [(t, i) for i, t in enumerate(came.tolist()) if t == t]
    heapq.heapify(due)
    inside: list[tuple[float, int]] = []
    line: deque[int] = deque()
    most = arrivals.size if seats is None else seats
    speeds, work = [0.0], sizes.tolist()
    t = progress = 0.0
    while due or inside:
        n = len(inside)
        if n == len(speeds):
            speeds.append(speed(n) / n)
        ends = t + (inside[0][0] - progress) / speeds[n] if n else np.inf
        if due and due[0][0] <= ends:
            now, who = heapq.heappop(due)
            progress += (now - t) * speeds[n]
            t = now
            line.append(who)
        else:
            progress, who = heapq.heappop(inside)
            t = left[who] = ends
            after = -1 if follows is None else int(follows[who])
            if after >= 0:
                came[after] = t + (0.0 if think is None else float(think[who]))
                heapq.heappush(due, (float(came[after]), after))
        while line and len(inside) < most:
            who = line.popleft()
            admitted[who] = t
            heapq.heappush(inside, (progress + work[who], who))
    return Visits(came, admitted, left)
