"""What must hold in the runs of a study whatever their queue: the planned warm-up, operational laws, a machine that keeps its
speed. The tests of one check share 1 % over its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.capacity import DRIFT_LIMIT, FINISHED
from analysis.fit.step_time import StepTimeModel
from analysis.intervals import TooShort
from analysis.littles_law import CLOSURE_TOLERANCE
from analysis.operational_laws import interactive_law, pasta, utilisation_law
from analysis.paired import point_of
from analysis.predictions.base import FAMILYWISE
from analysis.predictions.checks import process_of
from analysis.runs import Run
from analysis.stability import residual_trend
from analysis.study import name_of, seats_of
from analysis.warmup import check_cut

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Checked:
    """One check over the runs (or points) that it speaks of: where it held, where not and why, where it could not be told."""

    held: tuple[str, ...]
    broken: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def number(self) -> int:
        """Runs (or points) that it speaks of."""
        return len(self.held) + len(self.broken) + len(self.unknown)


def planned_warmup(runs: Sequence[Run]) -> Checked:
    """MSER-5 on E2E in the order of arrival against the planned cut; the replications of a point are averaged first (Welch).

    A correct run of few requests is blamed in one case of forty (docs/statistics.md): a reason to look, no proof.
    """
    points: dict[str, list[Run]] = {}
    for run in runs:
        points.setdefault(point_of(run), []).append(run)

    def verdict(point: str) -> str:
        series = [_sojourns(run) for run in points[point]]
        shortest = min(values.size for values in series)
        planned = min(int((run.requests["phase"] == "warmup").sum()) for run in points[point])
        mean = np.mean([values[:shortest] for values in series], axis=0)
        if not np.isfinite(mean).all():
            raise TooShort("requests that never ended", shortest)
        return check_cut(mean, min(planned, shortest - 1)).verdict

    return _checked(points, verdict, held="enough", broken="too early")


def operational_laws(runs: Sequence[Run]) -> dict[str, Checked]:
    """Laws of any queue, where they apply: one seat's utilisation, what Poisson arrivals see, a closed loop's balance."""
    seen = [run for run in runs if run.recorded("gauge")]
    one_seat = {name_of(run): run for run in seen if seats_of(run) == 1}
    poisson = {name_of(run): run for run in seen if process_of(run) == "poisson"}
    loops = {name_of(run): run for run in runs if process_of(run) == "closed"}

    def utilisation(name: str) -> str:
        law = utilisation_law(one_seat[name])
        close = abs(law.difference) <= CLOSURE_TOLERANCE * law.busy
        return "holds" if close else f"differs: busy {law.busy:.4f}, λE[S] {law.lam * law.ES:.4f}"

    def arrivals(name: str) -> str:
        found = pasta(poisson[name], confidence=1 - FAMILYWISE / len(poisson))
        return found.verdict + f": {found.seen:.3g} seen, {found.time_average:.3g} on average"

    def balance(name: str) -> str:
        run = loops[name]
        law = interactive_law(run, int(run.requests["session_id"].nunique()))
        start, end = run.window
        # At both edges of the window cycles are cut, one of each client.
        close = abs(law.predicted_N - law.N) <= law.N * law.N / max(1.0, law.X * (end - start))
        return "holds" if close else f"differs: X(R + Z) = {law.predicted_N:.2f} for {law.N} clients"

    return {
        "busy = λE[S] of one seat": _checked(one_seat, utilisation, held="holds", broken="differs"),
        "Poisson arrivals see time averages": _checked(poisson, arrivals, held="agrees", broken="differs"),
        "N = X(R + Z) of a closed loop": _checked(loops, balance, held="holds", broken="differs"),
    }


def steady_steps(runs: Sequence[Run], model_of: Callable[[Run], StepTimeModel | None]) -> Checked:
    """Whether steps grew slower within a run, against what ``model_of`` says they take: by more than 5 %, or by less."""
    models = {name_of(run): (run, model) for run in runs if run.recorded("steps") and (model := model_of(run))}

    def verdict(name: str) -> str:
        run, model = models[name]
        start, end = run.window
        steps = run.steps[(run.steps["start_s"] >= start) & (run.steps["end_s"] <= end)]
        ratio = (steps["end_s"] - steps["start_s"]).to_numpy(dtype=float) / np.asarray(model.predict(steps))
        trend = residual_trend(steps["start_s"], ratio, 1 - FAMILYWISE / len(models))
        if trend.low > DRIFT_LIMIT or trend.high < -DRIFT_LIMIT:
            return f"trend: {trend.mean:+.1%} ± {trend.half_width:.1%} from start to end"
        return "steady" if trend.low >= -DRIFT_LIMIT and trend.high <= DRIFT_LIMIT else "not known"

    return _checked(models, verdict, held="steady", broken="trend")


def _checked(names: Iterable[str], verdict: Callable[[str], str], held: str, broken: str) -> Checked:
    found: dict[str, list[str]] = {held: [], broken: [], "": []}
    for name in names:
        try:
            words = verdict(name)
        except ValueError:  # the run can't carry the check
            words = ""
        kind = next((kind for kind in (held, broken) if words.startswith(kind)), "")
        found[kind].append(f"{name} ({words.split(': ', 1)[1]})" if kind == broken else name)
    return Checked(tuple(found[held]), tuple(found[broken]), tuple(found[""]))


def _sojourns(run: Run) -> Array:
    """E2E of warm-up and measured requests in the order of arrival (s; inf: never ended)."""
    rows = run.requests[run.requests["phase"].isin(["warmup", "measure"])].sort_values("intended_s", kind="stable")
    e2e = (rows["finished_s"] - rows["intended_s"]).to_numpy(dtype=float)
    return np.where(rows["finish_reason"].isin(FINISHED), e2e, np.inf)
