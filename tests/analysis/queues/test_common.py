"""What holds for every model: examples in docstrings run, tails are tails, quantiles invert them."""

from __future__ import annotations

import doctest
import importlib
import itertools
import pkgutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import analysis.queues as queues
from analysis.queues import GIM1, MD1, MG1, MM1, ErlangA, MDc, MMc, MMcK, OpenQueue
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
    ]


@settings(max_examples=10, deadline=None)
@given(st.floats(0.02, 0.97), st.lists(st.floats(0.0, 200.0), min_size=2, max_size=6), st.floats(0.001, 0.9999))
def test_tails_fall_within_0_and_1_and_quantiles_invert_them(load: float, times: list[float], q: float) -> None:
    for model in models(load):
        check(model, sorted(times), q)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.0, 200.0), min_size=2, max_size=6), st.floats(0.001, 0.9999))
def test_the_same_for_numerical_inversions(times: list[float], q: float) -> None:
    for model in (SPREAD, DATA):
        check(model, sorted(times), q)


def check(model: OpenQueue, times: list[float], q: float) -> None:
    for tail, quantile in ((model.wait_tail, model.wait_quantile), (model.sojourn_tail, model.sojourn_quantile)):
        values = [tail(t) for t in times]
        assert all(0.0 <= v <= 1.0 for v in values)
        assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values)), model
        t = quantile(q)
        assert tail(t) <= 1 - q + 1e-9
        assert t == 0 or tail(t * (1 - 1e-6)) >= 1 - q - 1e-9
    for t in times:
        assert model.wait_tail(t) <= model.sojourn_tail(t) + 1e-9
