"""A batch ran empty while requests waited, and Little's law still "held to 0.0 %": both sides came from one set of stamps."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.littles_law import littles_law
from analysis.runs import Run
from tests.analysis.known_study import draw_plan, run_plan


@pytest.fixture(scope="module")
def busy() -> Run:
    return run_plan(draw_plan(17.0, 30.0), 8, 17.0)


def test_no_step_is_idle_and_no_seat_empty_while_someone_waits(busy: Run) -> None:
    steps = busy.steps
    waits = (steps["waiting"] > 0).to_numpy()
    assert waits.sum() > 50
    full = (steps["running"] == 8) | (steps["prefill_tokens"] + steps["decode_tokens"] == 256)
    assert full[waits].all()
    # an engine that was idle before a step had nobody waiting when it went idle
    before = steps["waiting"].shift(fill_value=0) + steps["inbox"].shift(fill_value=0)
    assert (before[steps["idle_s"] > 0] == 0).all()


def test_closure_has_two_observers_and_opens_when_one_does_not_see_who_waits(busy: Run) -> None:
    tables = {name: getattr(busy, name) for name in ("requests", "steps", "batch", "tokens", "gauge")}
    assert littles_law(busy).verdict == "closed"
    blind = Run(busy.meta, tables={**tables, "gauge": busy.gauge.assign(waiting=0, inbox=0)})
    found = littles_law(blind)
    assert found.verdict.startswith("open: remainder")
    # stamps alone would never have noticed
    assert pytest.approx(found.identity.lam * found.identity.W, rel=1e-12) == found.identity.L
    assert np.isfinite(found.closure.remainder)
