"""The runs of one point together: one statement on their mean, sharper than any of them alone where seeds are new in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from analysis.predictions.base import Check, Prediction, band_of


def pool(runs: Sequence[Sequence[Prediction]], repeats: bool = False) -> list[Prediction]:
    """One row for each model and quantity that every replication has a prediction of.

    Measurement and prediction are means over the replications; the band is that of the mean of one draw from each
    (independent but for what the runs of a machine share, such as the speed drawn for the simulation). ``repeats`` of one
    replication have the same arrivals and lengths, whose luck no mean takes out: their band is that of one run. Tests of
    assumptions are combined by Fisher's method (Statistical Methods for Research Workers, 1932, 21.1); rules hold where they
    hold in all. Where one run was refused, the row says why.
    """
    found = []
    for rows in zip(*runs, strict=True):
        first = rows[0]
        if any((row.model, row.quantity) != (first.model, first.quantity) for row in rows):
            raise ValueError("replications of one point must be held against the same models")
        refused = next((row.refused for row in rows if row.refused is not None), None)
        checks = _checks(rows)
        n = sum(row.n for row in rows)
        note = f"{len(rows)} {'repeats' if repeats else 'replications'}"
        if refused is not None:
            found.append(replace(first, checks=checks, refused=refused, n=n, band=None, note=note))
            continue
        predicted, measured = (float(np.mean([getattr(row, k) for row in rows])) for k in ("predicted", "measured"))
        row = replace(first, checks=checks, predicted=predicted, measured=measured, n=n, note=note)
        if first.tolerance is not None:
            scatter = [value.scatter for value in rows if value.scatter is not None]
            found.append(replace(row, scatter=max(scatter) if scatter else None))
            continue
        draws = [value.band.values for value in rows if value.band is not None]
        least = min((values.size for values in draws), default=0)
        if len(draws) < len(rows) or least < 10:
            found.append(replace(row, band=None, refused="not pooled: a replication's band is no set of draws"))
            continue
        means = draws[0] if repeats else np.mean([values[:least] for values in draws], axis=0)
        found.append(replace(row, band=band_of(means, measured, predicted)))
    return found


def _checks(rows: Sequence[Prediction]) -> tuple[Check, ...]:
    names = list(dict.fromkeys(check.assumption for row in rows for check in row.checks))
    return tuple(_together([c for row in rows for c in row.checks if c.assumption == name]) for name in names)


def _together(checks: Sequence[Check]) -> Check:
    holds = all(check.holds for check in checks)
    values = [check.p_value for check in checks if check.p_value is not None]
    if not values:
        broken = [check.finding for check in checks if not check.holds]
        return replace(checks[0], finding=broken[0] if broken else checks[0].finding, holds=holds)
    p = float(stats.combine_pvalues(np.maximum(values, 1e-300), method="fisher").pvalue)
    finding = f"{len(values)} tests together p = {p:.2g}, smallest {min(values):.2g}"
    return Check(checks[0].assumption, finding, p, holds)
