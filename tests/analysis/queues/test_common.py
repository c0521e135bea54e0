"""What holds for every model: examples in docstrings run, tails are tails, quantiles invert them."""

from __future__ import annotations

import doctest
import importlib
import itertools
import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import analysis.queues as queues
from analysis.queues import (
    GIM1,
    MD1,
    MG1,
    MM1,
    MMPP1,
    BatchArrival,
    BatchService,
    ErlangA,
    MDc,
    MMc,
    MMcK,
    OpenQueue,
    StateDependent,
)
from analysis.queues.service import erlang, hyperexponential

MODULES = [name for _, name, _ in pkgutil.iter_modules(queues.__path__, "analysis.queues.")]

SPREAD = MG1(0.85, stats.lognorm(s=0.9, scale=0.6))
DATA = MG1(0.6, [0.2, 0.7, 0.9, 1.4, 3.1])


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_public_name_has_a_docstring_and_is_sorted_out() -> None:
    assert len(set(queues.__all__)) == len(queues.__all__)
    for name in queues.__all__:
        assert getattr(queues, name).__doc__, name


def models(load: float) -> list[OpenQueue]:
    return [
        MM1(load, 1.0),
        MMc(3 * load, 1.0, 3),
        MMcK(5 * load, 1.0, 3, 9),
        ErlangA(4 * load, 1.0, 3, 0.4),
        MD1(load, 1.0),
        MDc(7 * load, 1.0, 7),
        MG1(load, erlang(3, 1.0)),
        MG1(load, hyperexponential([0.9, 0.1], [1.8, 0.2])),
        GIM1(erlang(4, 1 / load), 1.0),
        MMPP1([1.5 * load, 0.5 * load], [[-0.2, 0.2], [0.2, -0.2]], erlang(2, 0.9)),
        BatchArrival(load / 2, {1: 0.4, 3: 0.2, 2: 0.4}, erlang(2, 1.0)),
        BatchService(8 * load, 0.1, 0.3),
        StateDependent(load, lambda n: min(n, 4) ** 0.5),
    ]


def rescaled(u: float) -> list[OpenQueue]:
    """The same queues with time measured in 1/u seconds."""
    return [
        MMc(2.5 * u, u, 3),
        MMcK(4.0 * u, u, 3, 9),
        ErlangA(2.0 * u, u, 2, 0.5 * u),
        MDc(4.0 * u, 1 / u, 5),
        MG1(0.7 * u, stats.lognorm(s=0.8, scale=0.7 / u)),
        MG1(0.7 * u, np.array([0.4, 0.9, 1.5]) / u),
        GIM1(stats.gamma(0.5, scale=2.5 / u), u),
        MMPP1([1.3 * u, 0.1 * u], [[-0.1 * u, 0.1 * u], [0.1 * u, -0.1 * u]], erlang(2, 1 / u)),
        BatchArrival(0.2 * u, {2: 1.0}, erlang(2, 1 / u)),
        BatchService(5.0 * u, 0.05 / u, 0.2 / u),
        StateDependent(0.7 * u, lambda n: u),
    ]


@pytest.mark.parametrize("u", [1e-6, 1e6])
def test_answers_do_not_depend_on_the_unit_of_time(u: float) -> None:
    for small, plain in zip(rescaled(u), rescaled(1.0), strict=True):
        assert pytest.approx(plain.L, rel=1e-9) == small.L
        assert small.W * u == pytest.approx(plain.W, rel=1e-9)
        assert small.Lq == pytest.approx(plain.Lq, rel=1e-9)
        for q in (0.6, 0.99):
            assert small.wait_quantile(q) * u == pytest.approx(plain.wait_quantile(q), rel=1e-6)
            assert small.sojourn_quantile(q) * u == pytest.approx(plain.sojourn_quantile(q), rel=1e-6)


def test_little_holds_for_accepted_requests_in_every_model() -> None:
    for model in (*models(0.7), *rescaled(1.0)):
        assert pytest.approx(model.lam_eff * model.W, rel=1e-12) == model.L
        assert model.Lq == pytest.approx(model.lam_eff * model.Wq, rel=1e-12)
        assert model.assumptions
        assert model.wait_tail(-1.0) == 1.0
        assert model.wait_tail(float("inf")) == 0.0
        assert model.wait_tail([0.0, 1.0]).shape == (2,)
        for q in (0.0, 1.0, -0.5, 1.5, float("nan")):
            with pytest.raises(ValueError, match="strictly between"):
                model.wait_quantile(q)
            with pytest.raises(ValueError, match="strictly between"):
                model.sojourn_quantile(q)
        with pytest.raises(ValueError, match="not a number"):
            model.wait_tail(float("nan"))


def test_numerical_inversions_say_how_far_into_the_tail_they_see() -> None:
    with pytest.raises(NotImplementedError, match="resolves"):
        SPREAD.wait_quantile(1 - 1e-13)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.02, 0.97), st.lists(st.floats(0.0, 200.0), min_size=2, max_size=6), st.floats(0.001, 0.9999))
def test_tails_fall_within_0_and_1_and_quantiles_invert_them(load: float, times: list[float], q: float) -> None:
    for model in models(load):
        assert check(model, sorted(times), q), model


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.0, 200.0), min_size=2, max_size=6), st.floats(0.001, 0.9999))
def test_the_same_for_numerical_inversions(times: list[float], q: float) -> None:
    for model in (SPREAD, DATA):
        assert check(model, sorted(times), q), model


def check(model: OpenQueue, times: list[float], q: float) -> bool:
    """Whether the model's tails fall, stay within [0, 1], and are inverted by its quantiles; a wait is no longer than a
    sojourn."""
    for tail, quantile in ((model.wait_tail, model.wait_quantile), (model.sojourn_tail, model.sojourn_quantile)):
        values = [tail(t) for t in times]
        t = quantile(q)
        inverted = tail(t) <= 1 - q + 1e-9 and (t == 0 or tail(t * (1 - 1e-6)) >= 1 - q - 1e-9)
        falls = all(b <= a + 1e-12 for a, b in itertools.pairwise(values))
        if not (inverted and falls and all(0.0 <= v <= 1.0 for v in values)):
            return False
    return all(model.wait_tail(t) <= model.sojourn_tail(t) + 1e-9 for t in times)
