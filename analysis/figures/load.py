"""What a sweep did with its load: rates in and out, time inside steps, seats taken, objectives met."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.hockey_stick import capacity_line
from analysis.figures.points import LoadAxis, Point
from analysis.figures.style import INK, MUTED, SERIES, Drawn, Style, axes, finish


def throughput(name: str, points: Sequence[Point], axis: LoadAxis, style: Style) -> Drawn | None:
    """Requests a second offered, accepted, completed and within the objectives, at each load."""
    if len(points) < 2:
        return None
    table = pd.DataFrame([_rates(point, axis) for point in points])
    with axes(style) as (figure, (ax,)):
        end = axis.right(points)
        unit = 1.0 if axis.capacity is None else axis.capacity.rate
        ax.plot([0, end], [0, end * unit], color=MUTED, lw=1.0, ls=(0, (1, 2)), label="offered = completed")
        if axis.capacity is not None:
            ax.axhspan(axis.capacity.low, axis.capacity.high, color=MUTED, alpha=0.15, lw=0, label="capacity, 95 %")
        for i, (column, label, marker) in enumerate(_KINDS):
            if table[column].notna().any() and not (column == "accepted" and (table["refused"] == 0).all()):
                ax.plot(table["load"], table[column], marker, color=SERIES[i], ls="none", label=label)
        ax.set_xlim(0, end)
        ax.set_ylim(bottom=0)
        ax.set_xlabel(axis.label)
        ax.set_ylabel("requests per second")
        ax.legend(loc="upper left")
    counts = ", ".join(str(int(n)) for n in table["arrived"])
    return finish(
        figure,
        f"{name}-throughput",
        f"Rates against load ({name})",
        label="requests per second completed and within the objectives, against load",
        look="What comes out follows what goes in up to the capacity and stays there; goodput falls away from it where "
        "requests still finish, but too late.",
        caption=f"Client's stamps, measured window; n = {counts} arrivals. Completed: ended normally within the window. "
        "Goodput: met every objective. A count of Poisson arrivals scatters by 1 / √n, here ± "
        f"{196 / math.sqrt(max(1.0, table['arrived'].min())):.0f} % (95 %) at the point with the fewest."
        + ("" if (table["refused"] == 0).all() else " Accepted: not refused."),
        data=table,
    )


_KINDS = (("completed", "completed", "o"), ("goodput", "goodput", "^"), ("accepted", "accepted", "s"))


def _rates(point: Point, axis: LoadAxis) -> dict[str, float | str]:
    summaries = point.summaries
    n = len(summaries)
    goodput = [s.slo.goodput for s in summaries if s.slo is not None]
    return {
        "run": point.name,
        "load": axis.at(point.offered),
        "offered": point.offered,
        "accepted": sum(s.load.accepted for s in summaries) / n,
        "completed": sum(s.load.completed for s in summaries) / n,
        "goodput": sum(goodput) / n if len(goodput) == n else math.nan,
        "arrived": sum(s.measured.arrived for s in summaries),
        "refused": sum(s.measured.refused for s in summaries),
    }


def busy(name: str, points: Sequence[Point], axis: LoadAxis, style: Style) -> Drawn | None:
    """Share of time inside a step, and of the seats taken, at each load; None where the engine kept no steps."""
    rows = []
    for point in points:
        n = len(point.pairs)
        shares = [sum(getattr(s, key) for s in point.summaries) / n for key in ("busy", "occupancy")]
        rows.append({"run": point.name, "load": axis.at(point.offered), "busy": shares[0], "seats_taken": shares[1]})
    table = pd.DataFrame(rows)
    if len(points) < 2 or table["busy"].isna().all():
        return None
    with axes(style) as (figure, (ax,)):
        if axis.capacity is not None:
            ax.plot([0, 1], [0, 1], color=MUTED, lw=1.0, ls=(0, (1, 2)), label="share = load")
        _series(ax, points, table["load"], table["busy"], "busy: inside a step", 0, "o", axis)
        if table["seats_taken"].notna().any():
            _series(ax, points, table["load"], table["seats_taken"], "seats taken", 1, "s", axis)
        ax.set_xlim(0, axis.right(points))
        ax.set_ylim(0, 1.08)
        capacity_line(ax, axis)
        ax.set_xlabel(axis.label)
        ax.set_ylabel("share of the measured time")
        figure.legend(loc="outside lower center", ncols=3 if style.width > 4 else 2)
    seconds = ", ".join(f"{sum(s.window[1] - s.window[0] for s in point.summaries):.0f}" for point in points)
    return finish(
        figure,
        f"{name}-busy",
        f"Busy is not load ({name})",
        label="share of time inside a step and of seats taken, against load",
        look="The engine is busy nearly always long before the load reaches 1, since one request alone keeps it stepping; "
        "how far it is from its limit is seen in the seats taken.",
        caption=f"Engine's stamps of steps and its gauge, measured windows of {seconds} s. Shares of one run each, without "
        "an interval: busy differs from run to run about as much as the load does.",
        data=table,
    )


def _series(
    ax: Axes, points: Sequence[Point], x: pd.Series, y: pd.Series, label: str, colour: int, marker: str, axis: LoadAxis
) -> None:
    sides = [[axis.sides(point.offered)[i] for point in points] for i in (0, 1)]
    ax.errorbar(x, y, None, sides, fmt=marker, color=SERIES[colour], elinewidth=0.9, capsize=2, label=label)


def attainment(name: str, points: Sequence[Point], axis: LoadAxis, style: Style) -> Drawn | None:
    """Share of the arrived requests that met every objective, with its interval; None without objectives."""
    rows = []
    for point in points:
        slos = [s.slo for s in point.summaries if s.slo is not None]
        if len(slos) != len(point.pairs):
            return None
        # Of several replications the interval of the widest: they may differ by more than the binomial law says.
        met, arrived = sum(slo.met for slo in slos), sum(slo.arrived for slo in slos)
        low, high = min(slo.low for slo in slos), max(slo.high for slo in slos)
        rows.append(
            {"run": point.name, "load": axis.at(point.offered), "n": arrived, "attainment": met / arrived}
            | {"low": low, "high": high, "wanted": slos[0].wanted}
        )
    table = pd.DataFrame(rows)
    if len(points) < 2:
        return None
    slo = points[0].summaries[0].slo
    assert slo is not None
    limits = ", ".join(f"{metric.upper()} ≤ {limit:g} ms" for metric, limit in slo.limits.items())
    with axes(style) as (figure, (ax,)):
        errors = [table["attainment"] - table["low"], table["high"] - table["attainment"]]
        sides = [[axis.sides(point.offered)[i] for point in points] for i in (0, 1)]
        ax.errorbar(
            table["load"],
            table["attainment"],
            errors,
            sides,
            fmt="o",
            color=SERIES[0],
            elinewidth=1.1,
            capsize=2.5,
            label="measured",
        )
        ax.axhline(slo.wanted, color=INK, lw=1.0, ls=(0, (1, 2)), label=f"wanted: {slo.wanted:.0%}")
        ax.set_xlim(0, axis.right(points))
        ax.set_ylim(0, 1.05)
        capacity_line(ax, axis)
        ax.set_xlabel(axis.label)
        ax.set_ylabel("share of arrived requests")
        ax.legend(loc="lower left")
    reach = float(((table["high"] - table["low"]) / 2).max())
    return finish(
        figure,
        f"{name}-attainment",
        f"Objectives met ({name})",
        label="share of arrived requests that met every objective, against load",
        look="The load you can sell is where the lower end of the bar crosses the line, not where the dot does.",
        caption=f"{limits}. Client's stamps; n = {', '.join(str(n) for n in table['n'])} arrived: refused, failed and "
        "censored ones are misses. Bars: 95 % confidence (Wilson, on effective n); a change of less than ± "
        f"{100 * reach:.0f} points may be chance."
        + (" Of an unstable run it holds for this length only." if any(point.unstable for point in points) else ""),
        data=table,
    )
