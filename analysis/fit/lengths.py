"""Which law do lengths, service times or gaps follow: families fitted by maximum likelihood, each with a test that knows it.

The p-value comes from a parametric bootstrap: every resample is drawn from the fitted law and fitted anew, since a test
against a law that was fitted to the same data finds far too good an agreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from analysis.intervals import TooShort

Array = NDArray[np.float64]

LEAST = 30
REJECTED = 0.01  # p-value below which the data do not look like a family


@dataclass(frozen=True)
class FittedLaw:
    """One family. ``frozen`` is a scipy.stats law in the data's unit; ``ks`` the largest distance of the two CDFs.

    ``p_value`` is of ``ks`` under this family with parameters fitted; ``aic`` compares families (lower is better; laws of
    whole numbers are compared by probabilities, others by densities at a resolution of one, so that both can be held side
    by side for token counts).
    """

    family: str
    frozen: Any
    ks: float
    p_value: float
    aic: float
    n: int

    @property
    def verdict(self) -> str:
        """``fits`` or ``differs`` (at 1 %). Among many families, and with many data, most differ a little."""
        return "differs" if self.p_value < REJECTED else "fits"


def _geometric(x: Array) -> Any:
    if (x < 1).any() or (x != np.rint(x)).any():
        raise ValueError("a geometric law is of whole numbers from 1")
    return stats.geom(1.0 / max(float(x.mean()), 1.0 + 1e-12))


def _positive(x: Array) -> Array:
    if (x <= 0).any():
        raise ValueError(f"{np.count_nonzero(x <= 0)} values are not above 0")
    return x


def _lognormal(x: Array) -> Any:
    logs = np.log(_positive(x))
    return stats.lognorm(s=max(float(logs.std()), 1e-12), scale=math.exp(float(logs.mean())))


def _gamma(x: Array) -> Any:
    shape, _, scale = stats.gamma.fit(_positive(x), floc=0)
    return stats.gamma(shape, scale=scale)


def _weibull(x: Array) -> Any:
    shape, _, scale = stats.weibull_min.fit(_positive(x), floc=0)
    return stats.weibull_min(shape, scale=scale)


FAMILIES: dict[str, Callable[[Array], Any]] = {
    "exponential": lambda x: stats.expon(scale=float(x.mean())),
    "gamma": _gamma,
    "lognormal": _lognormal,
    "weibull": _weibull,
    "geometric": _geometric,
}


def fit_laws(
    x: ArrayLike, families: Sequence[str] | None = None, seed: int = 0, resamples: int = 199, most: int = 2000
) -> list[FittedLaw]:
    """The families that can hold these values, best AIC first.

    Args:
        x: independent values >= 0, not all equal; of more than ``most`` an even selection in their order is used (which also
            thins out correlation).
        families: names out of ``FAMILIES`` (default: all).

    Fails for values cut off at a limit (outputs that end at ``max_tokens``): leave out those at the limit and say so.

    Raises:
        TooShort: fewer than 30 values.
        ValueError: an unknown family; values that are negative, not finite or all equal.

    >>> rng = np.random.default_rng(1)
    >>> best = fit_laws(rng.gamma(4.0, 0.5, 1500), resamples=99)[0]
    >>> best.family, best.verdict, round(best.frozen.args[0])
    ('gamma', 'fits', 4)
    """
    values = np.asarray(x, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("expected one series of finite values, 0 or above")
    if values.size < LEAST:
        raise TooShort("values for a law", values.size, LEAST)
    if np.ptp(values) == 0:
        raise ValueError(f"all {values.size} values are {values[0]:g}: a constant, no law to fit")
    names = list(FAMILIES) if families is None else list(families)
    for name in names:
        if name not in FAMILIES:
            raise ValueError(f"no family is called {name!r}; there are {', '.join(FAMILIES)}")
    if values.size > most:
        values = values[np.linspace(0, values.size - 1, most).astype(np.int64)]
    rng = np.random.default_rng(seed)
    found = [_fit(name, values, rng, resamples) for name in names if _holds(name, values)]
    return sorted(found, key=lambda law: law.aic)


def _holds(name: str, values: Array) -> bool:
    try:
        FAMILIES[name](values)
    except ValueError:  # the family can't hold such values
        return False
    return True


def _fit(name: str, values: Array, rng: np.random.Generator, resamples: int) -> FittedLaw:
    law = FAMILIES[name](values)
    whole = bool((values == np.rint(values)).all())
    # Whole numbers are what a continuous law gives when rounded: so are the resamples, and the distance is of rounded laws.
    distance = _distance(law, values, whole)
    further = 0
    for _ in range(resamples):
        drawn = np.asarray(law.rvs(values.size, random_state=rng), dtype=float)
        if whole and name != "geometric":
            drawn = np.maximum(np.rint(drawn), float(values.min()))
        further += _distance(FAMILIES[name](drawn), drawn, whole) >= distance
    parameters = 1 if name in ("exponential", "geometric") else 2
    logs = law.logpmf(values) if name == "geometric" else law.logpdf(values)
    aic = 2.0 * parameters - 2.0 * float(np.sum(logs))
    return FittedLaw(name, law, distance, (1 + further) / (1 + resamples), aic, values.size)


def _distance(law: Any, values: Array, whole: bool) -> float:
    points, counts = np.unique(values, return_counts=True)
    above = np.cumsum(counts) / values.size
    edges = points + 0.5 if whole and hasattr(law.dist, "pdf") else points
    at = law.cdf(edges)
    if whole:
        return float(np.abs(at - above).max())
    return float(max(np.abs(at - above).max(), np.abs(at - (above - counts / values.size)).max()))
