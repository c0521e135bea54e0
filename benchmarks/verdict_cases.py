"""The verdicts there are, each with correct runs that it must not blame and wrong ones that it should notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrivals import (
    conditional_uniform_ks,
    dispersion_curve,
    fit_mmpp2,
    gap_correlation,
    lewis_ks,
    phase,
)
from analysis.capacity import drift
from analysis.fit.lengths import fit_laws
from analysis.intervals import batch_means
from analysis.littles_law import closure, sampling
from analysis.operational_laws import pasta
from analysis.paired import paired_differences
from analysis.predictions.base import Prediction, band_of, judge
from analysis.predictions.checks import independent_services
from analysis.predictions.one_seat import draws_for, lindley_path, mg1_waits
from analysis.runs import Run
from analysis.stability import backlog_stability, residual_trend, stability
from analysis.study import StudyResults
from analysis.summary import summarize
from analysis.tails import decay_rate, quantile_interval
from analysis.warmup import check_cut
from workload.records import lag_verdict

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], "Sample"]
Verdict = Callable[["Sample"], str]

RHO = 0.6
LONGER = 1.3  # what waits are multiplied by in the wrong cases


@dataclass(frozen=True)
class Sample:
    """One queue with a seat: stamps of its requests, in order; ``lost`` is a share of the client's rows that is missing."""

    arrivals: Array
    service: Array
    done: Array
    lost: float = 0.0
    clock: float = 0.0
    lag: Array | None = None  # the generator's lateness (s)
    further: Array | None = None  # the same requests once more: when they were done

    @property
    def waits(self) -> Array:
        """Before service, in seconds."""
        return self.done - self.service - self.arrivals

    @property
    def end(self) -> float:
        """The last arrival."""
        return float(self.arrivals[-1])

    def run(self, done: Array | None = None) -> Run:
        """As two observers record it: the client 1 ms away on either side, its clock moved, a share of its rows lost."""
        n, ends = self.arrivals.size, self.done if done is None else done
        t = np.concatenate([self.arrivals + 1e-3, ends])
        change = np.concatenate([np.ones(n), -np.ones(n)])
        order = np.argsort(t, kind="stable")
        gauge = pd.DataFrame(
            {"t_s": t[order], "inbox": 0, "waiting": 0, "running": np.cumsum(change[order]).astype(int)}
        )
        scheduled = np.maximum(ends - self.service, self.arrivals + 1e-3)
        requests = pd.DataFrame(
            {
                "request_id": np.arange(n).astype(str),
                "phase": "measure",
                "intended_s": self.arrivals + self.clock,
                "sent_s": self.arrivals + self.clock,
                "lag": 0.0 if self.lag is None else self.lag,
                "received_s": self.arrivals + 1e-3,
                "scheduled_s": scheduled,
                "first_token_s": scheduled + 1e-3 + self.clock,
                "last_token_s": ends + 1e-3 + self.clock,
                "done_s": ends,
                "finished_s": ends + 1e-3 + self.clock,
                "output_tokens": 2,
                "finish_reason": "length",
            }
        )
        missing = np.random.default_rng(n).random(n) < self.lost
        meta = {"window": {"measure_start_s": 0.0, "measure_end_s": self.end}}
        return Run.from_tables(requests[~missing].reset_index(drop=True), gauge=gauge, meta=meta)


@dataclass(frozen=True)
class Case:
    """A verdict with the correct runs ``right`` and the wrong ones ``wrong``; the verdict answers "right", "wrong" or
    "undecided"."""

    name: str
    verdict: Verdict
    right_name: str
    right: Draw
    wrong_name: str
    wrong: Draw


def queue(rng: np.random.Generator, n: int, rho: float = RHO, bursts: bool = False, constant: bool = False) -> Sample:
    """M/M/1 with 1 request a second in its steady state; or with arrivals whose rate changes by 9:1, or constant services."""
    service = np.full(n, rho) if constant else rng.exponential(rho, n)
    if bursts:
        slow = np.repeat(rng.random(n // 20 + 1) < 0.5, 20)[:n]
        gaps = rng.exponential(np.where(slow, 1.8, 0.2))
    else:
        gaps = rng.exponential(1.0, n)
    arrivals = np.cumsum(gaps)
    first = rng.exponential(rho / (1 - rho)) if rho < 1 and rng.random() < rho else 0.0
    work = np.cumsum(service)
    done = work + np.maximum(np.maximum.accumulate(arrivals - work + service), arrivals[0] + first)
    return Sample(arrivals, service, done)


def named(text: str, wrong: tuple[str, ...]) -> str:
    """A verdict's own words as "wrong", "undecided" or "right"."""
    if text.startswith(wrong):
        return "wrong"
    return "undecided" if text.startswith(("undecided", "too short", "not testable")) else "right"


def tested(p: Callable[[Sample], float]) -> Verdict:
    """A test at 1 %."""
    return lambda sample: "wrong" if p(sample) < 0.01 else "right"


def within(low: float, truth: float, high: float) -> str:
    """An interval held against what it should contain."""
    return "right" if low <= truth <= high else "wrong"


def cases(n: int) -> list[Case]:
    """All of them, on runs of ``n`` requests."""
    return [*of_runs(n), *of_machines(n), *of_waits(n), *of_models(n), *of_arrivals(n)]


def correct(n: int) -> Draw:
    """M/M/1 in its steady state."""
    return lambda rng: queue(rng, n)


def slower(n: int) -> Draw:
    """The same with waits that are 30 % longer than what arrivals and services make."""

    def draw(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n)
        return replace(sample, done=sample.done + (LONGER - 1) * sample.waits)

    return draw


def of_runs(n: int) -> list[Case]:
    """Bookkeeping, stability, warm-up."""

    def full(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n)
        backlog = np.maximum(0.0, n / 8 - (1 - RHO) * sample.arrivals)  # drains by n / 8 / (1 - rho)
        return replace(sample, done=sample.done + backlog)

    lost = lambda rng: replace(queue(rng, n), lost=0.02)  # noqa: E731
    moved = lambda rng: replace(queue(rng, n), clock=0.02)  # noqa: E731
    close = lambda s: named(closure(s.run(), 0.0, s.end).verdict, ("open",))  # noqa: E731
    heavy, over = (lambda rng: queue(rng, n, 0.9)), (lambda rng: queue(rng, n, 1.3))
    by_stamps = lambda s: backlog_stability(s.arrivals, s.done, 0, s.end, s.service).verdict  # noqa: E731
    return [
        Case("closure", close, "M/M/1 0.6", correct(n), "2 % of rows lost", lost),
        Case("closure", close, "M/M/1 0.6", correct(n), "clock moved 20 ms", moved),
        Case(
            "stability",
            lambda s: named(stability(s.run()).verdict, ("unstable",)),
            "M/M/1 0.9",
            heavy,
            "load 1.3",
            over,
        ),
        Case(
            "stability, stamps only", lambda s: named(by_stamps(s), ("unstable",)), "M/M/1 0.9", heavy, "load 1.3", over
        ),
        Case(
            "planned cut",
            lambda s: named(check_cut(s.waits, n // 10).verdict, ("too early",)),
            "M/M/1 0.6",
            correct(n),
            "starts with backlog",
            full,
        ),
    ]


def of_machines(n: int) -> list[Case]:
    """Drift of the machine between and within runs, and the generator's lateness."""

    def again(factor: float) -> Draw:
        """Two saturated runs of one request list; the second of a machine ``factor`` as slow, each run ± 1 %."""

        def draw(rng: np.random.Generator) -> Sample:
            service = rng.exponential(RHO, n)
            first, second = (np.cumsum(service * speed * rng.normal(1, 0.05, n)) for speed in rng.normal(1, 0.01, 2))
            return Sample(np.zeros(n), service, first, further=factor * second)

        return draw

    def drifted(sample: Sample) -> str:
        found = drift(sample.run(), sample.run(sample.further))
        return "wrong" if found.verdict.startswith("drifted") else named(found.verdict, ("drifted",))

    def late(rare: float) -> Draw:
        def draw(rng: np.random.Generator) -> Sample:
            lag = rng.exponential(1e-4, n) + np.where(rng.random(n) < rare, 0.02, 0.0)
            return replace(queue(rng, n), lag=lag)

        return draw

    def trend(slope: float) -> Draw:
        return lambda rng: replace(queue(rng, n), further=rng.lognormal(0.0, 0.1, n) + slope * np.linspace(0, 1, n))

    def trending(sample: Sample) -> str:
        assert sample.further is not None
        found = residual_trend(np.arange(float(n)), sample.further)
        return "right" if found.contains(0.0) else "wrong"

    return [
        Case("drift of the machine", drifted, "each run ± 1 %", again(1.0), "30 % slower", again(LONGER)),
        Case("trend of residuals (95 %)", trending, "noise of 10 %", trend(0.0), "5 % over the run", trend(0.05)),
        Case(
            "lag of the generator",
            lambda s: named(str(lag_verdict(list(s.lag))["verdict"]), ("fell behind",)),  # type: ignore[arg-type]
            "0.1 ms, one in 500 late",
            late(0.002),
            "one in 30 late",
            late(0.033),
        ),
    ]


def of_waits(n: int) -> list[Case]:
    """Intervals and verdicts about waits, against what theory knows of them."""
    rate = (1 - RHO) / RHO

    def mean(sample: Sample) -> str:
        found = batch_means(sample.waits)
        return within(found.low, RHO / (1 - RHO) * RHO, found.high)

    def quantile(q: float) -> Verdict:
        def verdict(sample: Sample) -> str:
            found = quantile_interval(sample.waits, q)
            return within(found.low, float(np.log(RHO / (1 - q))) / rate, found.high)

        return verdict

    # The limit that exactly the wanted share meets: an objective that is neither met nor missed.
    limit = float(np.log(1 / 0.1)) / rate

    def objective(sample: Sample) -> str:
        run = sample.run()
        run.meta["spec"] = {"slo": {"e2e_ms": 1e3 * (limit + 1e-3), "attain": 0.9}}
        slo = summarize(run).slo
        assert slo is not None
        return {"missed": "wrong", "met": "wrong", "undecided": "undecided"}[slo.verdict]

    def missed(sample: Sample) -> str:
        return "right" if objective(sample) == "undecided" else "wrong"

    decays = lambda s: named(decay_rate(s.waits, rate).verdict, ("differs", "pre-asymptotic"))  # noqa: E731
    wrong = ("waits 30 % longer", slower(n))
    return [
        Case("mean wait (95 %)", mean, "M/M/1 0.6", correct(n), *wrong),
        Case("p50 wait (95 %)", quantile(0.5), "M/M/1 0.6", correct(n), *wrong),
        Case("p90 wait (95 %)", quantile(0.9), "M/M/1 0.6", correct(n), *wrong),
        Case("decay rate", decays, "M/M/1 0.6", correct(n), *wrong),
        Case("objective met or missed", missed, "exactly at its limit", correct(n), *wrong),
    ]


def of_models(n: int) -> list[Case]:
    """What ``compare`` and the laws say."""

    def mg1(n: int) -> Verdict:
        @lru_cache
        def draws() -> Array:
            service = np.random.default_rng(0).exponential(RHO, 100_000)
            return mg1_waits(service, 1.0, 500, n, draws_for(500 + n))[0]

        def verdict(sample: Sample) -> str:
            measured, predicted = float(sample.waits.mean()), RHO * RHO / (1 - RHO)
            row = Prediction("mg1", "mean wait", "s", (), predicted, measured, n, band_of(draws(), measured, predicted))
            return named(judge([row])[0].verdict, ("differs",))

        return verdict

    def lindley(sample: Sample) -> str:
        noise = np.random.default_rng(0).normal(1.0, 0.01, n)  # of measured service times
        path, true = lindley_path(sample.arrivals, sample.service * noise), sample.done - sample.arrivals
        scatter = float(np.median(np.abs(path - true) / true))
        row = Prediction("lindley", "each sojourn", "s", (), 1.0, 1.0, n, tolerance=0.02, scatter=scatter)
        return named(judge([row])[0].verdict, ("differs",))

    def twice(longer: float) -> Draw:
        """The same requests once more, each answer 10 ms early or late and after a wait ``longer`` times as long."""

        def draw(rng: np.random.Generator) -> Sample:
            sample = queue(rng, n)
            again = sample.done + (longer - 1) * sample.waits + rng.normal(0, 0.01, n)
            return replace(sample, further=again)

        return draw

    def paired(sample: Sample) -> str:
        studies = []
        for run in (sample.run(), sample.run(sample.further)):
            run.meta |= {"experiment": "one", "point": "point", "replication": 0}
            studies.append(StudyResults(Path(), "", (run,), ()))
        table = paired_differences(*studies).set_index("metric")
        return named(str(table.loc["e2e", "verdict"]), ("faster", "slower"))

    sampled = lambda s: named(sampling(s.run(), 0.0, s.end).verdict, ("differs",))  # noqa: E731
    lossy = lambda rng: replace(queue(rng, n), lost=0.4)  # noqa: E731
    bursty = lambda rng: queue(rng, n, bursts=True)  # noqa: E731
    return [
        Case("compare: M/G/1 mean wait", mg1(n), "M/M/1 0.6", correct(n), "waits 30 % longer", slower(n)),
        Case("compare: M/G/1 mean wait", mg1(n), "M/M/1 0.6", correct(n), "bursts 9:1", bursty),
        Case(
            f"compare: the same, {5 * n:,}", mg1(5 * n), "M/M/1 0.6", correct(5 * n), "waits 30 % longer", slower(5 * n)
        ),
        Case("compare: Lindley's path", lindley, "M/M/1 0.6", correct(n), "waits 30 % longer", slower(n)),
        Case("compare: two folders", paired, "the same twice", twice(1.0), "waits 30 % longer", twice(LONGER)),
        Case("Little's law, sampling", sampled, "M/M/1 0.6", correct(n), "40 % of rows lost", lossy),
        Case(
            "PASTA (95 %)",
            lambda s: named(pasta(s.run()).verdict, ("differs",)),
            "M/M/1 0.6",
            correct(n),
            "bursts 9:1",
            bursty,
        ),
    ]


def of_arrivals(n: int) -> list[Case]:
    """Tests that a model's assumptions have to pass."""

    def bursty(rng: np.random.Generator) -> Sample:
        return queue(rng, n, bursts=True)

    def ramp(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n)
        return replace(sample, arrivals=sample.end * (sample.arrivals / sample.end) ** 0.75)

    def ticking(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n)
        on_tick = rng.random(n) < 0.04
        return replace(sample, arrivals=np.sort(np.where(on_tick, np.rint(sample.arrivals), sample.arrivals)))

    def constant(rng: np.random.Generator) -> Sample:
        return queue(rng, n, constant=True)

    def curve(sample: Sample) -> str:
        return "right" if dispersion_curve(sample.arrivals, 0, sample.end, confidence=0.99).poisson else "wrong"

    def repeated(rng: np.random.Generator) -> Sample:
        sample = queue(rng, n)
        again = np.flatnonzero(rng.random(n - 1) < 0.1) + 1
        service = sample.service.copy()
        service[again] = service[again - 1]
        return replace(sample, service=service)

    def independent(sample: Sample) -> float:
        found = independent_services(sample.service[1:], np.diff(sample.arrivals)).p_value
        return 1.0 if found is None else found

    def mmpp(sample: Sample) -> str:
        return "wrong" if fit_mmpp2(sample.arrivals).better_than_poisson else "right"

    def exponential(sample: Sample) -> str:
        values = sample.service + np.linspace(0.0, 1e-9, n)  # no law is fitted to constants
        return {"differs": "wrong", "fits": "right"}[fit_laws(values, ["exponential"], most=500)[0].verdict]

    def uniform(sample: Sample) -> float:
        return conditional_uniform_ks(sample.arrivals, 0, sample.end + 1e-9).p_value

    burst = ("bursts 9:1", bursty)
    return [
        Case(
            "Lewis KS (1 %)",
            tested(lambda s: lewis_ks(s.arrivals, 0, s.end + 1e-9).p_value),
            "Poisson",
            correct(n),
            *burst,
        ),
        Case("uniform KS (1 %)", tested(uniform), "Poisson", correct(n), "rate falls by half", ramp),
        Case("dispersion (1 %)", curve, "Poisson", correct(n), *burst),
        Case(
            "gap correlation (1 %)",
            tested(lambda s: gap_correlation(s.arrivals).p_value),
            "Poisson",
            correct(n),
            *burst,
        ),
        Case(
            "phase in a second (1 %)",
            tested(lambda s: phase(s.arrivals).p_value),
            "Poisson",
            correct(n),
            "4 % on ticks",
            ticking,
        ),
        Case("two-state MMPP by BIC", mmpp, "Poisson", correct(n), *burst),
        Case("independent services (1 %)", tested(independent), "M/M/1 0.6", correct(n), "one in ten again", repeated),
        Case("exponential services (1 %)", exponential, "exponential", correct(n), "constant", constant),
    ]
