"""What if the engine had other seats, another budget, more memory, another policy, a replica? Answered by simulation.

    python -m analysis.what_if RESULTS --if max_num_seqs=8 --if num_kv_blocks=14,watermark=0 --if replicas=2,routing=jsq

prints for the engine as it was measured and for each change: capacity, the largest Poisson rate that meets the objective, and
by how much both differ from the engine as it was. ``--check`` holds the capacities against each closed loop of the study that
kept its engine full.

Each draw has its own model (the fitted steps resampled in blocks and fitted again), its own speed of the machine (as it
varied over the study's runs) and its own requests. All variants share the draws, so a difference is known better than its
ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.fidelity.cells import FIT_EXPERIMENT, Fitted, Floats, cells_of, error_interval, fit_study, machine_factor
from analysis.fidelity.prediction import is_saturated, statements
from analysis.fit.step_time import StepTimeModel, fit_step_time
from analysis.runs import Run
from analysis.simulation import simulate_engine
from analysis.simulation.facts import FROM_CONFIG, FROM_ENGINE, EngineFacts
from analysis.simulation.mix import RequestMix, simulated_capacity
from analysis.simulation.routing import ROUTINGS, Routing
from analysis.study import StudyResults, open_study
from analysis.summary import latencies
from analysis.tables import aligned

DRAWS = 10
BLOCK = 32  # steps of a block in resampling the fit
CAPACITY_S = 60.0
REQUESTS, WARMUP = 500, 50
HALVINGS = 5
CAPACITY_BAR = 0.03
LEAST_SPREAD = 0.005  # no machine's speed is steadier than this
BAND = 0.95


@dataclass(frozen=True)
class Objective:
    """Limits in seconds (None: no limit) that a share ``attain`` of the requests must meet."""

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    attain: float

    @classmethod
    def of(cls, run: Run) -> Objective:
        """The objective that the run's study states."""
        slo = (run.meta.get("spec") or {}).get("slo") or {}
        ttft, tpot, e2e = (
            None if slo.get(name) is None else float(slo[name]) / 1e3 for name in ("ttft_ms", "tpot_ms", "e2e_ms")
        )
        return cls(ttft, tpot, e2e, float(slo.get("attain", 0.95)))

    @property
    def is_stated(self) -> bool:
        """Whether there is any limit to meet."""
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.e2e_s))

    def attained(self, run: Run) -> float:
        """Share of the measured requests that meet all limits; those without a second token have no TPOT to miss."""
        values = latencies(run)
        met = np.ones(len(values["e2e"]), dtype=bool)
        for name, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)):
            if limit is not None:
                met &= ~(values[name] > limit)
        return float(met.mean())


@dataclass(frozen=True)
class WhatIf:
    """The engine of a fitted study, and draws of what is not known about it."""

    engine: Run
    mix: RequestMix
    objective: Objective
    models: tuple[StepTimeModel, ...]

    @classmethod
    def of(cls, study: StudyResults, fitted: Fitted, draws: int = DRAWS, seed: int = 0) -> WhatIf:
        """Draw the models of ``study`` by resampling ``fitted``."""
        runs = [run for cell in cells_of(study) for run in cell.runs]
        factors = [machine_factor(run, fitted.model) for run in runs]
        spread = max(LEAST_SPREAD, float(np.std(factors, ddof=1)) if len(factors) > 1 else 0.0)
        rng = np.random.default_rng(seed)
        models = tuple(
            _refit(fitted, rng).scaled(max(0.5, 1.0 + spread * float(rng.standard_normal()))) for _ in range(draws)
        )
        engine = fitted.runs[0]
        return cls(engine, RequestMix.of(fitted.runs), Objective.of(engine), models)

    def capacity(self, changes: Mapping[str, Any] | None = None) -> Floats:
        """Completions a second under a permanent backlog (of every replica, whatever the routing), one a draw."""
        facts, replicas, _ = self._variant(changes)
        drawn = enumerate(self.models)
        return replicas * np.array([simulated_capacity(self.mix, m, facts, CAPACITY_S, seed) for seed, m in drawn])

    def feasible_rate(self, changes: Mapping[str, Any] | None = None, capacity: Floats | None = None) -> Floats:
        """The largest Poisson rate at which the objective is met, one a draw (found to 3 % of the capacity)."""
        facts, replicas, routing = self._variant(changes)
        capacities = self.capacity(changes) if capacity is None else capacity
        found = []
        for seed, (model, most) in enumerate(zip(self.models, capacities.tolist(), strict=True)):
            low, high = 0.0, most
            for _ in range(HALVINGS):
                rate = (low + high) / 2
                offered = self.mix.open_loop(rate, REQUESTS, WARMUP * replicas, seed)
                run = simulate_engine(offered, model, facts, seed=seed, replicas=replicas, routing=routing)
                low, high = (rate, high) if self.objective.attained(run) >= self.objective.attain else (low, rate)
            found.append((low + high) / 2)
        return np.array(found)

    def _variant(self, changes: Mapping[str, Any] | None) -> tuple[EngineFacts, int, Routing]:
        own = dict(changes or {})
        replicas, routing = int(own.pop("replicas", 1)), own.pop("routing", "random")
        if replicas < 1:
            raise ValueError(f"replicas is {replicas}; at least one engine serves")
        if routing not in ROUTINGS:
            raise ValueError(f"routing is {routing!r}; it must be one of {', '.join(ROUTINGS)}")
        return EngineFacts.of(self.engine, own), replicas, routing


def what_if(
    results: str | Path | StudyResults,
    changes: Sequence[Mapping[str, Any]],
    *,
    fit: str = FIT_EXPERIMENT,
    draws: int = DRAWS,
    objective: bool = True,
) -> pd.DataFrame:
    """One row for each variant (the engine as measured first) and quantity: value, 95 % interval, difference from the engine
    as measured with its interval.

    Args:
        changes: scheduling options by name, with ``replicas`` and ``routing`` beside them.
        fit: the experiment that step times are fitted to.
        objective: whether the largest feasible rate is wanted too (it takes most of the time); a study that states no
            objective has none.

    Raises:
        ValueError: an unknown option, or a study without that experiment.
    """
    study = results if isinstance(results, StudyResults) else open_study(results)
    asked = WhatIf.of(study, fit_study(study, fit), draws)
    base: dict[str, Floats] = {}
    rows = []
    for variant in ({}, *changes):
        values = {"capacity": asked.capacity(variant)}
        if objective and asked.objective.is_stated:
            values["feasible rate"] = asked.feasible_rate(variant, values["capacity"])
        base = base or values
        for name, drawn in values.items():
            low, high = _band(drawn)
            change = drawn / base[name] - 1
            change_low, change_high = _band(change)
            rows.append(
                {
                    "what if": ", ".join(f"{key}={value}" for key, value in variant.items()) or "as measured",
                    "quantity": f"{name} (req/s)",
                    "value": float(drawn.mean()),
                    "low": low,
                    "high": high,
                    "change": float(change.mean()),
                    "change_low": change_low,
                    "change_high": change_high,
                }
            )
    return pd.DataFrame(rows)


def check_table(study: StudyResults, fitted: Fitted, draws: int = DRAWS) -> pd.DataFrame:
    """Each measured closed loop that kept its engine full, against the capacity that what-if says of its options.

    The same clients offer the same requests in the simulation, so that chance is in both. ``outcome`` is ``meets`` where the
    whole interval of the error (over the repeats) is within 3 %; ``inside`` says whether the measured mean lies in the
    interval that was given for it, which also holds the machine and the fit.
    """
    asked = WhatIf.of(study, fitted, draws)
    known = EngineFacts.of(asked.engine).scheduling
    rows = []
    for cell in cells_of(study):
        if not is_saturated(cell.runs[0]):
            continue
        scheduling = EngineFacts.of(cell.runs[0]).scheduling
        changes = {name: value for name, value in scheduling.items() if value != known[name]}
        facts = EngineFacts.of(asked.engine, changes)
        drawn = np.array([_same_backlog(cell.runs[0], model, facts, seed) for seed, model in enumerate(asked.models)])
        low, high = _band(drawn)
        measured = np.array([statements(run)["capacity"] for run in cell.runs])
        error = error_interval(float(drawn.mean()) / measured - 1)
        rows.append(
            {
                "cell": cell.name,
                "what if": ", ".join(f"{name}={value}" for name, value in changes.items()) or "as fitted",
                "predicted": float(drawn.mean()),
                "low": low,
                "high": high,
                "measured": float(measured.mean()),
                "error": error.mean,
                "error_low": error.low,
                "error_high": error.high,
                "inside": bool(low <= measured.mean() <= high),
                "outcome": error.outcome(CAPACITY_BAR),
            }
        )
    return pd.DataFrame(rows)


def _same_backlog(run: Run, model: StepTimeModel, facts: EngineFacts, seed: int) -> float:
    simulated = simulate_engine(run, model, facts, seed=seed, cooldown_limit_s=0.0)
    simulated.meta["engine"] = dict(run.meta.get("engine") or {})
    return statements(simulated)["capacity"]


def _refit(fitted: Fitted, rng: np.random.Generator) -> StepTimeModel:
    """The model fitted again to blocks of steps drawn with replacement (gaps and pauses stay with their steps)."""
    tables, occasions = [], []
    for occasion, steps in enumerate(fitted.steps):
        blocks = np.array_split(np.arange(len(steps)), max(1, len(steps) // BLOCK))
        picks = rng.integers(len(blocks), size=len(blocks))
        tables += [steps.iloc[blocks[pick]] for pick in picks]
        occasions += [occasion] * len(blocks)
    model = fit_step_time(tables, occasions)
    return replace(model, execution=fitted.model.execution, wake_s=fitted.model.wake_s)


def _band(values: Floats) -> tuple[float, float]:
    """Mean ± t · standard deviation: where the value of one machine on one day lies, from few draws."""
    half = float(stats.t.ppf((1 + BAND) / 2, len(values) - 1) * values.std(ddof=1)) if len(values) > 1 else float("nan")
    return float(values.mean()) - half, float(values.mean()) + half


def parse_changes(text: str) -> dict[str, Any]:
    """``max_num_seqs=8,policy=sjf`` as options; whole numbers, decimals, true and false are read as such.

    Raises:
        ValueError: a part is no ``name=value``, or its name no option.
    """
    found: dict[str, Any] = {}
    names = (*FROM_ENGINE, *FROM_CONFIG, "replicas", "routing")
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in names:
            raise ValueError(f"--if {text}: {part!r} is no OPTION=VALUE; options are {', '.join(names)}")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answers; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m analysis.what_if", description="What another engine would do.")
    parser.add_argument("results", type=Path, help="results folder of a measured study")
    parser.add_argument(
        "--if", dest="changes", action="append", default=[], metavar="OPTION=VALUE,...", help="a variant"
    )
    parser.add_argument(
        "--fit", default=FIT_EXPERIMENT, metavar="NAME", help="experiment that the step times are fitted to"
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of what is not known (default: %(default)s)")
    parser.add_argument("--capacity-only", action="store_true", help="leave out the feasible rate")
    parser.add_argument("--check", action="store_true", help="hold capacities against the study's own closed loops")
    options = parser.parse_args(arguments)
    try:
        study = open_study(options.results)
        if options.check:
            table = check_table(study, fit_study(study, options.fit), options.draws)
        else:
            changes = [parse_changes(text) for text in options.changes]
            table = what_if(study, changes, fit=options.fit, draws=options.draws, objective=not options.capacity_only)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [[_text(name, value) for name, value in zip(table.columns, row, strict=True)] for row in table.to_numpy()]
    print("\n".join(aligned(list(table.columns), rows, left=(0, 1))))
    return 0


def _text(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{100 * value:+.1f} %" if name.startswith(("change", "error")) else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
