"""The linear model behind the step times: its columns, and prices that are never negative, fitted in relative error."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from analysis.fit.misfit import SHAPE_TERMS

Floats = NDArray[np.float64]
Ints = NDArray[np.int_]

LEAST_AT_KNOT = 5  # steps of a segment between two knots
EVERY_SIZE_TO = 16  # rows up to which each size may be a knot; kernels work in tiles, small batches show them
KNOT_RATIO = 1.25  # between knots beyond that
LEAST_PAUSES = 3  # idle starts between two knots of the pause
IDLE_KNOTS_S = (0.1, 0.2, 0.5)
LONGEST_IDLE_S = 1.0  # by then caches are cold and clocks are down; a longer pause costs no more
OUTLIER_SCALES = 6.0  # robust standard deviations beyond which a step is set aside,
LEAST_OUTLIER = 0.03  # but never one that is nearer than this, relative to its prediction
FAR_ABOVE = 5.0  # times the usual gap
_HUBER = 1.5


def rows_of(steps: pd.DataFrame) -> Floats:
    """Token rows that each step computes, of prompts and of decodes alike: (len(steps),)."""
    return steps["prefill_tokens"].to_numpy(dtype=float) + steps["decode_seqs"].to_numpy(dtype=float)


def idle_of(steps: pd.DataFrame) -> Floats:
    """Seconds that the engine had nothing to do before each step (0 where the table does not say)."""
    if "idle_s" not in steps:
        return np.zeros(len(steps))
    return steps["idle_s"].to_numpy(dtype=float)


def row_knots(rows: Floats) -> Ints:
    """The fewest rows seen, each size that is far enough from the knot before and has enough steps since it, and the most."""
    sizes, counts = np.unique(rows.astype(int), return_counts=True)
    knots, since = [int(sizes[0])], 0
    for size, count in zip(sizes[1:].tolist(), counts[1:].tolist(), strict=True):
        since += count
        is_far = size <= EVERY_SIZE_TO or size >= KNOT_RATIO * knots[-1]
        if is_far and since >= LEAST_AT_KNOT:
            knots.append(size)
            since = 0
    return np.unique([*knots, int(sizes[-1])])


def idle_knots(idle_s: Floats) -> Floats:
    """0 and the standard knots with enough idle starts on both sides; the longest idle time (at most the longest that counts)
    always, where there are enough idle starts at all."""
    idle = idle_s[idle_s > 0]
    if len(idle) < LEAST_PAUSES:
        return np.zeros(1)
    longest = min(LONGEST_IDLE_S, float(idle.max()))
    knots = [0.0]
    for knot in IDLE_KNOTS_S:
        before, after = np.count_nonzero((idle > knots[-1]) & (idle <= knot)), np.count_nonzero(idle > knot)
        if knot < longest and min(before, after) >= LEAST_PAUSES:
            knots.append(knot)
    return np.array([*knots, longest])


def segments(values: Floats, knots: Ints | Floats) -> list[Floats]:
    """How far each value reaches into each segment between two knots; beyond the last knot it stays full."""
    return [np.clip(values - low, 0, high - low) for low, high in pairwise(knots.tolist())]


def design(steps: pd.DataFrame, knots: Ints, cold: Floats) -> tuple[Floats, list[str]]:
    """Columns of the linear model: 1, rows inside each segment, idle time inside each segment, the linear terms."""
    linear = [steps[term].to_numpy(dtype=float) for term in SHAPE_TERMS]
    parts = [np.ones(len(steps)), *segments(rows_of(steps), knots), *segments(idle_of(steps), cold), *linear]
    names = ["base", *(f"rows {low}-{high}" for low, high in pairwise(knots.tolist()))]
    names += [f"idle {low:g}-{high:g} s" for low, high in pairwise(cold.tolist())]
    return np.column_stack(parts), [*names, *SHAPE_TERMS]


def independent(columns: Floats) -> NDArray[np.bool_]:
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


def robust_prices(columns: Floats, duration: Floats) -> tuple[Floats, NDArray[np.bool_], float]:
    """Non-negative prices, least squares in relative error over the steps that are no outliers; which these are; the error.

    Relative to the modelled time, in turns with it: relative to the measured one, scatter of s makes prices 2 s² too low.
    The error is the mean square of relative errors, each counted up to 10 %, by which two designs can be compared.
    """
    modelled, weights = duration, np.ones(len(duration))
    for _ in range(20):
        prices = _nnls(columns, duration, modelled, weights)
        modelled = columns @ prices
        residual = duration / modelled - 1.0
        distance = np.abs(residual - np.median(residual))
        scale = max(1e-9, 1.4826 * float(np.median(distance)))
        new = np.minimum(1.0, _HUBER * scale / np.maximum(distance, 1e-300))
        if np.max(np.abs(new - weights)) < 1e-3:
            break
        weights = new
    kept = ~is_outlier(duration / modelled)
    prices = _nnls(columns, duration, modelled, kept.astype(float))
    distance = np.abs(duration / (columns @ prices) - 1.0)
    return prices, kept, float(np.mean(np.minimum(distance, 0.1) ** 2))


def relative_prices(columns: Floats, values: Floats) -> Floats:
    """Non-negative prices under which value over price has mean 1.

    Their proportions come from the values that are not far above the rest (a thread that waits for another now and then takes
    fifty times as long, whatever the step was), their level from all.
    """
    weights, usual = np.ones(len(values)), np.ones(len(values), dtype=bool)
    for _ in range(10):
        kept = weights * usual
        prices, _ = nnls(columns * kept[:, None], values * kept)
        priced = np.maximum(columns @ prices, 1e-3 * float(values.mean()))
        weights, usual = 1.0 / priced, values <= FAR_ABOVE * float(np.median(values / priced)) * priced
    return np.asarray(prices * np.mean(values / priced))


def is_outlier(ratio: Floats) -> NDArray[np.bool_]:
    """Which ratios of measured to predicted time lie beyond six robust standard deviations (and 3 %) of the middle."""
    middle = float(np.median(ratio))
    distance = np.abs(ratio - middle)
    return distance > max(LEAST_OUTLIER, OUTLIER_SCALES * 1.4826 * float(np.median(distance)))


def _nnls(columns: Floats, duration: Floats, unit: Floats, weights: Floats) -> Floats:
    """Weighted least squares of the errors in units of ``unit``, prices not negative."""
    root, relative = np.sqrt(weights), columns / unit[:, None]
    scales = np.linalg.norm(relative, axis=0)
    gram = (relative * root[:, None] / scales).T
    # the normal equations would square the condition number; QR keeps it and makes the problem small
    q, r = np.linalg.qr(gram.T)
    solution, _ = nnls(r, q.T @ (root * duration / unit), maxiter=100 * len(scales))
    return np.asarray(solution / scales)
