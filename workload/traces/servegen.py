"""ServeGen's client windows: arrivals drawn from each client's gap law in each window (ServeGen, arXiv 2505.09999).

The file gives no arrivals but, for each client and window of 600 s, a rate and a gamma or Weibull law of the gaps. Each
window is drawn as a stationary renewal process: its first gap is the law's residual (else bursty clients would be offered
too much: (cv^2 - 1) / 2 arrivals a window more).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workload.seeds import streams
from workload.traces.raw import RawTrace, refuse

COLUMNS = ("client", "window_start_s", "rate_rps", "cv", "pattern", "shape", "scale")
WINDOW_S = 600.0

Times = NDArray[np.float64]


def read_servegen(path: Path, table: pd.DataFrame, lines: NDArray[np.int64], seed: int) -> RawTrace:
    """One drawn day; the lines are those of the windows that the arrivals come from."""
    for name in ("window_start_s", "rate_rps", "shape"):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
        floor = values >= 0 if name == "window_start_s" else values > 0
        refuse(path, ~(np.isfinite(values) & floor), table[name], lines, "a number above 0")
    refuse(path, ~table["pattern"].isin(["Gamma", "Weibull"]).to_numpy(), table["pattern"], lines, "Gamma or Weibull")
    rng = streams(seed, "arrivals", 3)[2]
    pieces: list[Times] = []
    for pattern, shape, rate, start in zip(
        table["pattern"], table["shape"], table["rate_rps"], table["window_start_s"], strict=True
    ):
        draw = gamma_window if pattern == "Gamma" else weibull_window
        pieces.append(float(start) + draw(float(shape), float(rate), WINDOW_S, rng))
    arrival = np.concatenate(pieces) if pieces else np.empty(0)
    counts = np.array([len(piece) for piece in pieces], dtype=np.int64)
    first = float(table["window_start_s"].min()) if len(table) else 0.0
    order = np.argsort(arrival, kind="stable")
    note = (
        f"{len(table)} client windows of {WINDOW_S:g} s drawn with seed {seed}: gaps of each window's law and shape, mean "
        f"1 / rate_rps, stationary from the window's start; no lengths in this format; 0 is second {first:g} of the day"
    )
    return RawTrace(path, arrival[order] - first, None, None, None, np.repeat(lines, counts)[order], [note])


def gamma_window(shape: float, rate: float, length: float, rng: np.random.Generator) -> Times:
    """A stationary renewal process with gamma gaps of mean 1 / rate, in [0, length)."""
    scale = 1 / (rate * shape)
    first = rng.random() * rng.gamma(shape + 1) * scale  # residual: uniform part of the length-biased gap
    return _fill(first, lambda n: rng.standard_gamma(shape, n) * scale, rate, length)


def weibull_window(shape: float, rate: float, length: float, rng: np.random.Generator) -> Times:
    """A stationary renewal process with Weibull gaps of mean 1 / rate, in [0, length)."""
    scale = 1 / (rate * math.exp(math.lgamma(1 + 1 / shape)))
    first = rng.random() * rng.gamma(1 + 1 / shape) ** (1 / shape) * scale
    return _fill(first, lambda n: rng.weibull(shape, n) * scale, rate, length)


def _fill(first: float, gaps: object, rate: float, length: float) -> Times:
    assert callable(gaps)
    pieces = [np.array([first])]
    last = first
    while last < length:
        more = last + np.cumsum(gaps(max(16, int(1.2 * rate * length))))
        pieces.append(more)
        last = float(more[-1])
    times = np.concatenate(pieces)
    return times[times < length]
