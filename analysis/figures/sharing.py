"""E2E against output tokens: under processor sharing time is proportional to size, the line through 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.points import Array, Point, left_out, would_notice
from analysis.figures.style import DASHES, MARKERS, SERIES, Drawn, Style, axes, finish

MOST = 4  # points that one picture holds
DOTS = 400  # of each point; more would only cover each other


def e2e_by_output(
    name: str, points: Sequence[Point], comparison: pd.DataFrame, style: Style, seed: int = 0
) -> Drawn | None:
    """Requests as dots, and for each stable point the line through 0; None where nobody shares or sizes do not differ."""
    shown = []
    for point in [p for p in points if p.stable and (p.summaries[0].seats or 1) > 1][:MOST]:
        tokens, e2e = _finished(point)
        if tokens.size >= 20 and np.unique(tokens).size > 1:
            shown.append((point, tokens, e2e))
    if not shown:
        return None
    rng = np.random.default_rng(seed)
    data, slopes = [], []
    with axes(style) as (figure, (ax,)):
        longest = max(float(tokens.max()) for _, tokens, _ in shown)
        for i, (point, tokens, e2e) in enumerate(shown):
            some = np.sort(rng.permutation(tokens.size)[:DOTS])
            slope = 1e3 * float(np.sum(tokens * e2e) / np.sum(tokens**2))
            dots: dict[str, Any] = {"ms": 0.55 * style.marker, "alpha": 0.45, "mew": 0}
            ax.plot(tokens[some], 1e3 * e2e[some], MARKERS[i], color=SERIES[i], ls="none", **dots)
            ax.plot([0, longest], [0, slope * longest], color=SERIES[i], ls=DASHES[i], label=point.name)
            slopes.append(f"{point.name}: {slope:.3g} ms a token, n = {tokens.size}")
            data.append(pd.DataFrame({"run": point.name, "output_tokens": tokens, "e2e_ms": 1e3 * e2e}))
        ax.set_xlim(0, 1.03 * longest)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("output tokens")
        ax.set_ylabel("E2E (ms)")
        ax.legend(loc="upper left")
    used = [point for point, _, _ in shown]
    runs = [summary.name for point in used for summary in point.summaries]
    few = " At most 400 dots of each." if any(tokens.size > DOTS for _, tokens, _ in shown) else ""
    return finish(
        figure,
        f"{name}-e2e-by-output",
        f"E2E against output tokens ({name})",
        label="end-to-end latency of each request against its output tokens",
        look="The signature of processor sharing: a request twice as long takes twice the time, and load turns the line "
        "instead of lifting it. Dots that stand high at small sizes waited or had a long prompt.",
        caption=f"Client's stamps of finished measured requests; least squares through 0 ({'; '.join(slopes)}).{few}"
        + would_notice(comparison, "ps", runs, "E2E per output token")
        + left_out([p for p in points if (p.summaries[0].seats or 1) > 1], None, used),
        data=data,
    )


def _finished(point: Point) -> tuple[Array, Array]:
    """Output tokens and E2E (s) of the measured requests that ended normally, replications together."""
    tables = [run.measured[run.measured["finish_reason"].isin(["stop", "length"])] for run, _ in point.pairs]
    rows = pd.concat(tables)
    e2e = (rows["finished_s"] - rows["intended_s"]).to_numpy(dtype=float)
    return rows["output_tokens"].to_numpy(dtype=float), e2e
