"""The command line: ``python -m workload.run experiments.yaml``. Study in, measured runs and a report out.

This is where the parts are put together, and the only module of ``workload`` that knows ``analysis``.
Exit codes: 0 done; 1 a verdict failed and ``--strict``; 2 bad input; 3 a run failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.process import EngineProcessDied
from engine.weights.presets import check_model
from workload.describe import plan_text
from workload.experiment import RunSpec, Study, load_study
from workload.lock import MeasurementLock
from workload.reporting import Reporter, make_reporter
from workload.runner import Cores, StudyRunner
from workload.schema import SpecError
from workload.study_file import StudyFile
from workload.targets.base import Target, TargetFailed
from workload.targets.inline import VirtualClock
from workload.targets.process import ProcessTarget

DONE, VERDICT_FAILED, BAD_INPUT, RUN_FAILED, INTERRUPTED = 0, 1, 2, 3, 130
SIMULATED_SUFFIX = ".simulated"  # simulated results lie beside the measured ones, never in their place

StartTarget = Callable[[EngineConfig], Target]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    from analysis.compare import MODELS

    options = _parser().parse_args(arguments)
    try:
        study = load_study(options.study, seed=options.seed, models=list(MODELS))
        runs = _selected(study, options.only)
        if not options.simulate:
            _check_model(study, runs)
        if options.list:
            print(_experiments_text(study))
            return DONE
        if options.dry_run:
            print(plan_text(replace(study, runs=tuple(runs))))
            return DONE
        start_simulated, source = _simulation(options, runs)
        folder = study.name if start_simulated is None else study.name + SIMULATED_SUFFIX
        results = _prepare_results(options.out / folder, resume=options.resume)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    reporter = make_reporter(options.quiet)
    if source:
        reporter.say(f"simulated, not measured: {source}")
    try:
        code = _measure(study, runs, results, reporter, start_simulated, resume=options.resume)
    except KeyboardInterrupt:
        print(f"interrupted; what was recorded is in {results}", file=sys.stderr)
        return INTERRUPTED
    if code != DONE:
        return code
    try:
        return _report(results, reporter, strict=options.strict)
    except ValueError as error:
        print(f"error: nothing to report: {error}; what was recorded is in {results}", file=sys.stderr)
        return RUN_FAILED


def _check_model(study: Study, runs: Sequence[RunSpec]) -> None:
    """Refuse a model that is nowhere before anything starts; an emulated engine and a known queue need none.

    Raises:
        ValueError: with the file and the line of the model.
    """
    if all(run.target is not None or run.engine.get("executor") == "emulated" for run in runs):
        return
    assert study.model is not None
    try:
        check_model(study.model)
    except ValueError as error:
        raise StudyFile(study.path).error(SpecError(("model",), str(error))) from None


def _simulation(options: argparse.Namespace, runs: Sequence[RunSpec]) -> tuple[StartTarget | None, str]:
    """How engines start in virtual time and what is simulated how, in words; ``None`` and nothing for a measurement.

    Raises:
        ValueError: a simulation was asked for that can't be, or options that belong to one without it.
    """
    if not options.simulate:
        if options.calibration is not None:
            raise ValueError("--calibration gives a simulation its step times; give --simulate with it")
        return None, ""
    if options.resume:
        raise ValueError("--resume goes on with a measurement; a simulated study takes seconds: run it anew")
    from analysis.simulation.target import SimulatedEngines

    engines = SimulatedEngines(options.calibration)
    of_engines = [run for run in runs if run.target is None]
    engines.check(of_engines)
    said = [f"step times are {engines.source}"] if of_engines else []
    said += ["known queues are served exactly, in virtual time"] if len(of_engines) < len(runs) else []
    return engines.start, "; ".join(said)


def _measure(
    study: Study,
    runs: Sequence[RunSpec],
    results: Path,
    reporter: Reporter,
    start_simulated: StartTarget | None,
    *,
    resume: bool,
) -> int:
    from analysis.capacity import capacity
    from analysis.runs import open_run

    cores = Cores.split()
    runner = StudyRunner(
        study,
        results,
        start_target=start_simulated or (lambda config: ProcessTarget(config, cores.engine)),
        capacity_of=lambda path: capacity(open_run(path)),
        reporter=reporter,
        resume=resume,
        about=None if start_simulated is None else {"simulated": True},
        queue_clock=None if start_simulated is None else VirtualClock,
    )
    try:
        with MeasurementLock(reporter.say), _pinned(cores.generator):
            runner.run(runs)
    except (TargetFailed, EngineProcessDied) as failure:
        print(f"error: a run failed: {failure}; what was recorded is in {results}", file=sys.stderr)
        return RUN_FAILED
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


def _report(results: Path, reporter: Reporter, *, strict: bool) -> int:
    from analysis.report import report_study

    reporter.say("analysing")
    report = report_study(results)
    print(report.text)
    print(f"report: {report.html}")
    if strict and report.failures:
        print("failed verdicts: " + "; ".join(report.failures), file=sys.stderr)
        return VERDICT_FAILED
    return DONE


def _experiments_text(study: Study) -> str:
    """The experiments with their runs and points: what ``--only`` takes."""
    from analysis.tables import aligned

    rows = []
    for name in study.experiments:
        runs = [run for run in study.runs if run.experiment == name]
        rows.append([name, str(len(runs)), ", ".join(dict.fromkeys(run.point for run in runs))])
    return "\n".join(aligned(["experiment", "runs", "points"], rows, left=(0, 2)))


def _selected(study: Study, only: str | None) -> list[RunSpec]:
    """The study's runs, or those of one experiment.

    Raises:
        ValueError: there is no experiment of that name.
    """
    if only is None:
        return list(study.runs)
    if only not in study.experiments:
        raise ValueError(f"--only {only}: no such experiment; {study.path} has {', '.join(study.experiments)}")
    return [run for run in study.runs if run.experiment == only]


def _prepare_results(results: Path, *, resume: bool) -> Path:
    """An empty (or, to resume, the existing) folder for the study. Earlier results are moved aside, never overwritten.

    Raises:
        ValueError: it can't be made, or nothing can be written into it.
    """
    try:
        return _made(results, resume=resume)
    except OSError as error:
        raise ValueError(
            f"can't write results into {results}: {error.strerror or error}; give another folder with --out"
        ) from None


def _made(results: Path, *, resume: bool) -> Path:
    if results.exists() and any(results.iterdir()) and not resume:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(results.stat().st_mtime))
        aside = results.with_name(f"{results.name}.{stamp}")
        results.rename(aside)
        print(f"earlier results moved to {aside}")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=results):  # fails here, before anything is measured, where nothing can be written
        return results


@contextmanager
def _pinned(cores: Sequence[int]) -> Iterator[None]:
    """This process on ``cores`` for the time of the measurement."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workload.run",
        description="Run a study: offer its loads to the engine, record, analyse, report.",
    )
    parser.add_argument("study", type=Path, help="the YAML file that describes the study")
    parser.add_argument("--only", metavar="NAME", help="run this experiment alone")
    parser.add_argument("--list", action="store_true", help="print the experiments of the study")
    parser.add_argument("--seed", type=int, help="replaces the study's seed")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results (default: results)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be run")
    parser.add_argument("--resume", action="store_true", help="go on with a study: keep what is complete")
    parser.add_argument("--simulate", action="store_true", help="run the study in virtual time, without a model")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="RESULTS",
        help="with --simulate: results folder of a measured study, whose step times are fitted",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a verdict failed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
