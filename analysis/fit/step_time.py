"""How long a step takes, fitted to measured steps: the one thing that a simulation of the engine takes from the machine.

Monotone piecewise-linear in the decode rows, linear in context read, prompt tokens, prompt attention, prompts and logit
rows, every price at least 0. Fitted in relative error, robust to steps that the machine disturbed; those are counted and
kept as noise, never dropped. The textbook's a + b·n is fitted beside it, with its misfit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from analysis.fit.misfit import LINEAR_TERMS, SHAPE_TERMS, Misfit, TextbookFit, misfit, textbook
from analysis.fit.step_noise import LEAST_BLOCK, StepNoise, filled_gaps
from analysis.intervals import correlation_time
from analysis.runs import Run
from engine.executors.base import BatchShape, ScheduledBatch

Floats = NDArray[np.float64]

LEAST_STEPS = 20
LEAST_AT_KNOT = 5  # steps of one batch size that carry a knot
OUTLIER_SCALES = 6.0  # robust standard deviations beyond which a step is set aside,
LEAST_OUTLIER = 0.03  # but never one that is nearer than this, relative to its prediction
_HUBER = 1.5


@dataclass(frozen=True)
class StepTimeModel:
    """Seconds of a step from its shape; callable with a ``BatchShape``.

    Attributes:
        base_s: of a step without any row.
        decode_knots, decode_s: seconds that decode rows add, at each knot (the first is 0 rows, 0 s); between the knots
            linear, beyond the last as between the last two.
        prices: seconds per unit of each of ``LINEAR_TERMS``.
        ranges: lowest and highest value of each shape term that the fit saw.
        unidentified: terms that the fitted steps could not tell from the others (price 0).
        gap_s: mean time between steps where nothing was idle; its distribution is ``noise.gap_s``.
        wake_s: mean time from receipt to the start of a step on an idle engine (0 where it was not measured).
        time_factor: measured over predicted time of all steps: what the steps set aside add on average.
        execution: the execution fingerprint of the fitted run; None where only steps were given.
    """

    base_s: float
    decode_knots: tuple[int, ...]
    decode_s: tuple[float, ...]
    prices: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    unidentified: tuple[str, ...]
    misfit: Misfit
    textbook: TextbookFit
    gap_s: float
    wake_s: float
    time_factor: float
    noise: StepNoise
    execution: dict[str, Any] | None

    def predict(self, batch: BatchShape | ScheduledBatch | pd.DataFrame) -> float | Floats:
        """Seconds of one step (shape or batch), or of every row of a steps table: (len(table),)."""
        if isinstance(batch, pd.DataFrame):
            rows = batch["decode_seqs"].to_numpy(dtype=float)
            seconds = self.base_s + self._decode_seconds(rows)
            for term, price in self.prices.items():
                seconds = seconds + price * batch[term].to_numpy(dtype=float)
            return seconds
        return self(batch.shape() if isinstance(batch, ScheduledBatch) else batch)

    def __call__(self, shape: BatchShape) -> float:
        rows = shape.decode_seqs
        table = self._decode_table
        prices = self._price_row
        return (
            (table[rows] if rows < len(table) else self.base_s + float(self._decode_seconds(np.array([rows]))[0]))
            + prices[0] * shape.kv_tokens
            + prices[1] * shape.prefill_tokens
            + prices[2] * shape.prefill_attention
            + prices[3] * shape.prefill_seqs
            + prices[4] * shape.logit_rows
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
        return misfit(steps, duration, predicted, ~_is_outlier(duration / predicted))

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
            "decode_knots": list(self.decode_knots),
            "decode_s": list(self.decode_s),
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
                "decode_knots": tuple(data["decode_knots"]),
                "decode_s": tuple(data["decode_s"]),
                "ranges": {term: (float(low), float(high)) for term, (low, high) in data["ranges"].items()},
                "unidentified": tuple(data["unidentified"]),
                "misfit": Misfit(**data["misfit"]),
                "textbook": TextbookFit(**data["textbook"]),
                "noise": StepNoise.from_dict(data["noise"]),
            }
        )

    def _decode_seconds(self, rows: Floats) -> Floats:
        knots, seconds = self.decode_knots, self.decode_s
        inside = np.interp(rows, knots, seconds)
        if len(knots) < 2:
            return inside
        slope = (seconds[-1] - seconds[-2]) / (knots[-1] - knots[-2])
        return inside + slope * np.maximum(rows - knots[-1], 0.0)

    @cached_property
    def _decode_table(self) -> list[float]:
        """``base_s`` and the decode seconds of 0, 1, 2, ... rows, for speed."""
        return (self.base_s + self._decode_seconds(np.arange(self.decode_knots[-1] + 1.0))).tolist()

    @cached_property
    def _price_row(self) -> tuple[float, ...]:
        return tuple(self.prices[term] for term in LINEAR_TERMS)


def fit_step_time(source: Run | pd.DataFrame | Sequence[Run | pd.DataFrame]) -> StepTimeModel:
    """Fit the step times of a run, of a steps table, or of several of one execution together.

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
    steps = pd.concat([table[list(SHAPE_TERMS)].assign(duration_s=_durations(table)) for table in tables])
    duration = steps["duration_s"].to_numpy()
    knots = _knots(steps["decode_seqs"].to_numpy(dtype=int))
    columns, names = _design(steps, knots)
    kept_columns = _independent(columns)
    prices = np.zeros(len(names))
    prices[kept_columns], kept = _robust_nnls(columns[:, kept_columns], duration)
    predicted = columns @ prices
    slow = ~kept & (duration > predicted)
    ratio = np.where(slow, 1.0, duration / predicted)
    known_gaps = gaps[~np.isnan(gaps)]
    slopes = prices[1 : len(knots)] * np.diff(knots)
    named = dict(zip(names, prices.tolist(), strict=True))
    return StepTimeModel(
        base_s=float(prices[0]),
        decode_knots=tuple(int(knot) for knot in knots),
        decode_s=(0.0, *np.cumsum(slopes).tolist()),
        prices={term: named[term] for term in LINEAR_TERMS},
        ranges={term: (float(steps[term].min()), float(steps[term].max())) for term in SHAPE_TERMS},
        unidentified=tuple(name for name, used in zip(names, kept_columns, strict=True) if not used),
        misfit=misfit(steps, duration, predicted, kept),
        textbook=textbook(steps, duration, kept),
        gap_s=float(known_gaps.mean()) if len(known_gaps) else 0.0,
        wake_s=_wake(sources),
        time_factor=float(duration.sum() / predicted.sum()),
        noise=StepNoise(ratio, np.where(slow, duration - predicted, 0.0), filled_gaps(gaps), _block_length(ratio)),
        execution=execution,
    )


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


def _knots(rows: NDArray[np.int_]) -> NDArray[np.int_]:
    """0 and the batch sizes seen often enough; the largest always."""
    sizes, counts = np.unique(rows, return_counts=True)
    return np.unique([0, *sizes[counts >= LEAST_AT_KNOT].tolist(), int(sizes[-1])])


def _design(steps: pd.DataFrame, knots: NDArray[np.int_]) -> tuple[Floats, list[str]]:
    """Columns of the linear model: 1, the rows inside each segment between knots, the linear terms."""
    rows = steps["decode_seqs"].to_numpy(dtype=float)
    segments = [np.clip(rows - low, 0, high - low) for low, high in pairwise(knots)]
    linear = [steps[term].to_numpy(dtype=float) for term in LINEAR_TERMS]
    names = ["base", *(f"decode_seqs {low}-{high}" for low, high in pairwise(knots))]
    return np.column_stack([np.ones(len(steps)), *segments, *linear]), [*names, *LINEAR_TERMS]


def _independent(columns: Floats) -> NDArray[np.bool_]:
    """Which columns are no combination of those before them (to 1e-6 of their own length)."""
    used = np.zeros(columns.shape[1], dtype=bool)
    basis: list[Floats] = []
    for index, column in enumerate(columns.T):
        length = float(np.linalg.norm(column))
        if length == 0.0:
            continue
        rest = column / length
        for _ in range(2):  # twice: Gram-Schmidt loses digits
            for direction in basis:
                rest = rest - (direction @ rest) * direction
        left = float(np.linalg.norm(rest))
        if left > 1e-6:
            used[index] = True
            basis.append(rest / left)
    return used


def _robust_nnls(columns: Floats, duration: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Non-negative prices, least squares in relative error over the steps that are no outliers; and which these are."""
    relative = columns / duration[:, None]
    weights = np.ones(len(duration))
    for _ in range(20):
        prices = _nnls(relative, weights)
        residual = 1.0 / (relative @ prices) - 1.0
        scale = max(1e-9, 1.4826 * float(np.median(np.abs(residual - np.median(residual)))))
        new = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(residual - np.median(residual)), 1e-300))
        if np.max(np.abs(new - weights)) < 1e-3:
            break
        weights = new
    kept = ~_is_outlier(1.0 / (relative @ prices))
    return _nnls(relative, kept.astype(float)), kept


def _nnls(relative: Floats, weights: Floats) -> Floats:
    root = np.sqrt(weights)
    scales = np.linalg.norm(relative, axis=0)
    gram = (relative * root[:, None] / scales).T
    # the normal equations would square the condition number; QR keeps it and makes the problem small
    q, r = np.linalg.qr(gram.T)
    solution, _ = nnls(r, q.T @ root, maxiter=100 * len(scales))
    return solution / scales


def _is_outlier(ratio: Floats) -> NDArray[np.bool_]:
    middle = float(np.median(ratio))
    distance = np.abs(ratio - middle)
    return distance > max(LEAST_OUTLIER, OUTLIER_SCALES * 1.4826 * float(np.median(distance)))


def _block_length(ratio: Floats) -> int:
    """Ten correlation times, at least 16 steps, at most a quarter of what there is."""
    return int(min(max(LEAST_BLOCK, math.ceil(10 * correlation_time(ratio))), max(1, len(ratio) // 4)))
