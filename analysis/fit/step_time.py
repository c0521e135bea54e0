"""How long a step takes, fitted to measured steps: the one thing that a simulation of the engine takes from the machine.

Every new token of a step is a row, whether of a prompt or of a decode, so the time is monotone piecewise-linear in all rows
together; linear in decodes, context read, prompt tokens, prompt attention, prompts and logit rows; and a step after a pause
takes longer, the longer the pause. Every price is at least 0. Fitted in relative error, robust to steps that the machine
disturbed; those are counted and kept as noise, never dropped. The textbook's a + b·n is fitted beside it, with its misfit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.fit.misfit import SHAPE_TERMS, Misfit, TextbookFit, misfit, textbook
from analysis.fit.step_design import (
    design,
    idle_knots,
    idle_of,
    independent,
    is_outlier,
    relative_prices,
    robust_prices,
    row_knots,
    rows_of,
)
from analysis.fit.step_noise import LEAST_BLOCK, StepNoise, filled_gaps
from analysis.intervals import correlation_time
from analysis.runs import Run
from engine.executors.base import BatchShape, ScheduledBatch

Floats = NDArray[np.float64]

LEAST_STEPS = 20
SPEED_ROUNDS = 4  # of fitting prices and speeds in turns


@dataclass(frozen=True)
class StepTimeModel:
    """Seconds of a step from its shape; callable with a ``BatchShape``.

    Attributes:
        base_s: of a step of the fewest rows seen (which is the first knot).
        row_knots, row_s: seconds that more rows add, at each knot (0 s at the first); between the knots linear, beyond the
            last as between the last two.
        idle_knots_s, idle_extra_s: seconds that a step after a pause takes longer, at each knot of the pause (the first is
            0 s, 0 s); between the knots linear, beyond the last constant. All zero where the fit saw too few pauses.
        prices: seconds per unit of each of ``SHAPE_TERMS``, beside what the rows cost.
        ranges: lowest and highest value of each shape term that the fit saw.
        unidentified: terms that the fitted steps could not tell from the others (price 0).
        gap_s: mean time between steps where nothing was idle.
        gap_prices: of that time: seconds a step, a row, a logit row.
        wake_s: mean time from receipt to the start of a step on an idle engine (0 where it was not measured).
        time_factor: measured over predicted time of all steps: what the steps set aside add on average.
        execution: the execution fingerprint of the fitted run; None where only steps were given.
    """

    base_s: float
    row_knots: tuple[int, ...]
    row_s: tuple[float, ...]
    idle_knots_s: tuple[float, ...]
    idle_extra_s: tuple[float, ...]
    prices: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    unidentified: tuple[str, ...]
    misfit: Misfit
    textbook: TextbookFit
    gap_s: float
    gap_prices: tuple[float, float, float]
    wake_s: float
    time_factor: float
    noise: StepNoise
    execution: dict[str, Any] | None

    def predict(self, batch: BatchShape | ScheduledBatch | pd.DataFrame) -> float | Floats:
        """Seconds of one step (shape or batch, no pause before it), or of every row of a steps table: (len(table),)."""
        if isinstance(batch, pd.DataFrame):
            seconds = self.base_s + self._row_seconds(rows_of(batch))
            seconds = seconds + np.interp(idle_of(batch), self.idle_knots_s, self.idle_extra_s)
            for term, price in self.prices.items():
                seconds = seconds + price * batch[term].to_numpy(dtype=float)
            return seconds
        return self(batch.shape() if isinstance(batch, ScheduledBatch) else batch)

    def __call__(self, shape: BatchShape) -> float:
        rows, table, prices = shape.decode_seqs + shape.prefill_tokens, self._row_table, self._price_row
        seconds = table[rows] if rows < len(table) else self.base_s + float(self._row_seconds(np.array([rows]))[0])
        seconds += prices[0] * shape.decode_seqs + prices[1] * shape.kv_tokens + prices[5] * shape.logit_rows
        if shape.prefill_seqs:
            seconds += (
                prices[2] * shape.prefill_tokens + prices[3] * shape.prefill_attention + prices[4] * shape.prefill_seqs
            )
        return seconds

    def cold(self, idle_s: float) -> float:
        """Seconds that a step after a pause of ``idle_s`` takes longer."""
        return float(np.interp(idle_s, self.idle_knots_s, self.idle_extra_s))

    def gap(self, shape: BatchShape) -> float:
        """Mean seconds between the end of a step and the start of the next where nothing is idle."""
        base, row, logit_row = self.gap_prices
        return base + row * (shape.decode_seqs + shape.prefill_tokens) + logit_row * shape.logit_rows

    def scaled(self, factor: float) -> StepTimeModel:
        """The same machine, ``factor`` times as slow in every step and in every gap."""
        return replace(
            self,
            base_s=self.base_s * factor,
            row_s=tuple(seconds * factor for seconds in self.row_s),
            idle_extra_s=tuple(seconds * factor for seconds in self.idle_extra_s),
            prices={term: price * factor for term, price in self.prices.items()},
            gap_s=self.gap_s * factor,
            gap_prices=(self.gap_prices[0] * factor, self.gap_prices[1] * factor, self.gap_prices[2] * factor),
        )

    def outside(self, shape: BatchShape) -> tuple[str, ...]:
        """The terms of ``shape`` that lie outside what the fit saw."""
        values = ((term, float(getattr(shape, term))) for term in SHAPE_TERMS)
        return tuple(term for term, value in values if not self.ranges[term][0] <= value <= self.ranges[term][1])

    def extrapolates(self, batch: BatchShape | ScheduledBatch | pd.DataFrame) -> bool | NDArray[np.bool_]:
        """Whether the prediction reaches beyond the fitted steps; for a steps table one answer a row."""
        if isinstance(batch, pd.DataFrame):
            outside = np.zeros(len(batch), dtype=bool)
            for term in SHAPE_TERMS:
                values = batch[term].to_numpy(dtype=float)
                outside |= (values < self.ranges[term][0]) | (values > self.ranges[term][1])
            return outside
        return bool(self.outside(batch.shape() if isinstance(batch, ScheduledBatch) else batch))

    def misfit_on(self, run_or_steps: Run | pd.DataFrame) -> Misfit:
        """The misfit on other steps (held out); steps are set aside by the same rule around their own median."""
        steps = run_or_steps.steps if isinstance(run_or_steps, Run) else run_or_steps
        duration = _durations(steps)
        predicted = np.asarray(self.predict(steps))
        return misfit(steps, duration, predicted, ~is_outlier(duration / predicted))

    def require_execution(self, execution: Mapping[str, Any] | None) -> None:
        """Refuse to predict an execution other than the one fitted; what does not say which it is passes.

        Raises:
            ValueError: both fingerprints, and where they differ.
        """
        if execution is None or self.execution is None or _facts(execution) == _facts(self.execution):
            return
        ours, theirs = _facts(self.execution), _facts(execution)
        names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
        differences = ", ".join(f"{name} {ours.get(name)!r} against {theirs.get(name)!r}" for name in names)
        raise ValueError(
            f"the step-time model was fitted under execution {_label(self.execution)} and can't be used for execution "
            f"{_label(execution)}: {differences}; fit it to steps of that execution"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **plain,
            **{name: list(getattr(self, name)) for name in _TUPLES},
            "ranges": {term: list(limits) for term, limits in self.ranges.items()},
            "unidentified": list(self.unidentified),
            "misfit": asdict(self.misfit),
            "textbook": asdict(self.textbook),
            "noise": self.noise.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepTimeModel:
        """The inverse of ``to_dict``."""
        return cls(
            **{
                **data,
                **{name: tuple(data[name]) for name in _TUPLES},
                "ranges": {term: (float(low), float(high)) for term, (low, high) in data["ranges"].items()},
                "unidentified": tuple(data["unidentified"]),
                "misfit": Misfit(**data["misfit"]),
                "textbook": TextbookFit(**data["textbook"]),
                "noise": StepNoise.from_dict(data["noise"]),
            }
        )

    def _row_seconds(self, rows: Floats) -> Floats:
        knots, seconds = self.row_knots, self.row_s
        inside = np.interp(rows, knots, seconds)
        if len(knots) < 2:
            return inside
        slope = (seconds[-1] - seconds[-2]) / (knots[-1] - knots[-2])
        return inside + slope * np.maximum(rows - knots[-1], 0.0)

    @cached_property
    def _row_table(self) -> list[float]:
        """``base_s`` and the seconds of 0, 1, 2, ... rows, for speed."""
        return (self.base_s + self._row_seconds(np.arange(self.row_knots[-1] + 1.0))).tolist()

    @cached_property
    def _price_row(self) -> tuple[float, ...]:
        return tuple(self.prices[term] for term in SHAPE_TERMS)


_TUPLES = ("row_knots", "row_s", "idle_knots_s", "idle_extra_s", "unidentified", "gap_prices")


def fit_step_time(
    source: Run | pd.DataFrame | Sequence[Run | pd.DataFrame], occasions: Sequence[int] | None = None
) -> StepTimeModel:
    """Fit the step times of a run, of a steps table, or of several of one execution together.

    Each occasion has its own speed of the machine beside the common prices: else a grid measured in a fast minute and runs
    measured in a slow one would make the shapes that only one of them has too cheap or too dear. The model's speed is the
    mean over all of their time.

    Args:
        occasions: a number for each source; sources of one number were measured at one speed. Default: each at its own.

    Raises:
        ValueError: fewer than 20 steps, steps without a positive duration, or runs of different executions.
    """
    sources = [source] if isinstance(source, Run | pd.DataFrame) else list(source)
    tables = [item.steps if isinstance(item, Run) else item for item in sources]
    total = sum(len(table) for table in tables)
    if total < LEAST_STEPS:
        raise ValueError(f"{total} steps are too few for a step-time model; at least {LEAST_STEPS} are needed")
    execution = _common_execution(sources)
    gaps = np.concatenate([_gaps(table) for table in tables])
    steps = pd.concat(
        [table[list(SHAPE_TERMS)].assign(idle_s=idle_of(table), duration_s=_durations(table)) for table in tables]
    )
    duration = steps["duration_s"].to_numpy()
    knots, cold = row_knots(rows_of(steps)), idle_knots(idle_of(steps))
    columns, names = design(steps, knots, cold)
    occasion = np.repeat(range(len(tables)) if occasions is None else occasions, [len(table) for table in tables])
    speed = np.ones(len(duration))
    for _ in range(SPEED_ROUNDS if len(set(occasion.tolist())) > 1 else 1):
        prices, kept, used = _cheapest(columns, names, duration / speed)
        speed = _speeds(duration, columns @ prices, kept, occasion)
    predicted = columns @ prices * speed
    slow = ~kept & (duration > predicted)
    ratio = np.where(slow, 1.0, duration / predicted)
    ratio *= float((ratio * predicted).sum() / predicted.sum() / ratio.mean())  # resampled ratios take as long in all
    named = dict(zip(names, prices.tolist(), strict=True))
    rows_end = len(knots)
    gap_prices, gap_ratio = _fit_gaps(steps, gaps)
    known_gaps = gaps[~np.isnan(gaps)]
    return StepTimeModel(
        base_s=float(prices[0]),
        row_knots=tuple(int(knot) for knot in knots),
        row_s=(0.0, *np.cumsum(prices[1:rows_end] * np.diff(knots)).tolist()),
        idle_knots_s=tuple(cold.tolist()),
        idle_extra_s=(0.0, *np.cumsum(prices[rows_end : rows_end + len(cold) - 1] * np.diff(cold)).tolist()),
        prices={term: named[term] for term in SHAPE_TERMS},
        ranges={term: (float(steps[term].min()), float(steps[term].max())) for term in SHAPE_TERMS},
        unidentified=tuple(name for name, is_used in zip(names, used, strict=True) if not is_used),
        misfit=misfit(steps, duration, predicted, kept),
        textbook=textbook(steps, duration, kept),
        gap_s=float(known_gaps.mean()) if len(known_gaps) else 0.0,
        gap_prices=gap_prices,
        wake_s=_wake(sources),
        time_factor=float(duration.sum() / predicted.sum()),
        noise=StepNoise(ratio, np.where(slow, duration - predicted, 0.0), gap_ratio, _block_length(ratio)),
        execution=execution,
    )


def _speeds(duration: Floats, predicted: Floats, kept: NDArray[np.bool_], occasion: NDArray[np.int_]) -> Floats:
    """How slow the machine was on the occasion of each step, over its mean."""
    labels = np.unique(occasion, return_inverse=True)[1]
    measured, modelled = (np.bincount(labels, np.where(kept, seconds, 0.0)) for seconds in (duration, predicted))
    levels = np.divide(measured, modelled, out=np.ones(len(measured)), where=modelled > 0)
    mean = float(measured.sum() / modelled.sum())
    return np.asarray(levels[labels] / mean)


def _cheapest(
    columns: Floats, names: list[str], duration: Floats
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Prices of all columns, which steps were kept, which columns were used.

    All rows are decodes or prompt tokens, so one of these two can't be told from the rows: the dearer one gets a price of its
    own on top, the other is left to the rows.
    """
    best = None
    for left_out in ("prefill_tokens", "decode_seqs"):
        candidates = np.array([name != left_out for name in names])
        used = candidates.copy()
        used[candidates] = independent(columns[:, candidates])
        prices = np.zeros(len(names))
        prices[used], kept, error = robust_prices(columns[:, used], duration)
        if best is None or error < best[0]:
            best = error, prices, kept, used
    assert best is not None
    return best[1:]


def _fit_gaps(steps: pd.DataFrame, gaps: Floats) -> tuple[tuple[float, float, float], Floats]:
    """Prices of the gap (a step, a row, a logit row), and each step's gap over its price."""
    known = ~np.isnan(gaps)
    if not np.any(gaps[known] > 0):
        return (0.0, 0.0, 0.0), np.ones(len(gaps))
    columns = np.column_stack([np.ones(len(gaps)), rows_of(steps), steps["logit_rows"].to_numpy(dtype=float)])
    base, row, logit_row = relative_prices(columns[known], gaps[known]).tolist()
    priced = columns @ np.array([base, row, logit_row])
    ratio = np.divide(gaps, priced, out=np.ones(len(gaps)), where=priced > 0)
    filled = filled_gaps(ratio)
    return (base, row, logit_row), filled / filled.mean()


def execution_of(run: Run) -> dict[str, Any] | None:
    """The execution fingerprint that a run recorded; None where it recorded none."""
    prints = run.meta.get("fingerprints") or (run.meta.get("engine") or {}).get("fingerprints") or {}
    found = prints.get("execution")
    return None if found is None else dict(found)


def _common_execution(sources: Sequence[Run | pd.DataFrame]) -> dict[str, Any] | None:
    found = [execution for item in sources if isinstance(item, Run) and (execution := execution_of(item)) is not None]
    for other in found[1:]:
        if _facts(other) != _facts(found[0]):
            raise ValueError(
                f"runs of different executions can't share a step-time model: {_label(found[0])} and {_label(other)}"
            )
    return found[0] if found else None


def _facts(execution: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in execution.items() if name != "digest"}


def _label(execution: Mapping[str, Any]) -> str:
    return str(execution.get("digest") or _facts(execution))


def _durations(steps: pd.DataFrame) -> Floats:
    duration = steps["end_s"].to_numpy(dtype=float) - steps["start_s"].to_numpy(dtype=float)
    if not np.all(duration > 0):
        row = int(np.flatnonzero(~(duration > 0))[0])
        raise ValueError(f"step {steps['step'].iloc[row]} lasts {duration[row]} s; a step takes a positive time")
    return duration


def _gaps(steps: pd.DataFrame) -> Floats:
    """From the end of each step to the start of the next; nan where the engine was idle in between, and at the end."""
    gaps = np.full(len(steps), np.nan)
    start, end = steps["start_s"].to_numpy(dtype=float), steps["end_s"].to_numpy(dtype=float)
    busy = steps["idle_s"].to_numpy(dtype=float)[1:] == 0
    gaps[:-1] = np.where(busy, start[1:] - end[:-1], np.nan)
    return gaps


def _wake(sources: Sequence[Run | pd.DataFrame]) -> float:
    delays = []
    for run in sources:
        if isinstance(run, Run) and len(run.requests):
            first = run.requests.groupby("visible_step")["received_s"].min()
            woken = run.steps[run.steps["idle_s"] > 0].set_index("step")["start_s"]
            delays.append((woken - first.reindex(woken.index)).dropna().to_numpy(dtype=float))
    measured = np.concatenate(delays) if delays else np.empty(0)
    return float(max(0.0, measured.mean())) if len(measured) else 0.0


def _block_length(ratio: Floats) -> int:
    """Ten correlation times, at least 16 steps, at most a quarter of what there is."""
    return int(min(max(LEAST_BLOCK, math.ceil(10 * correlation_time(ratio))), max(1, len(ratio) // 4)))
