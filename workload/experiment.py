"""A study: experiments.yaml read, checked and expanded into the list of runs that it asks for.

``load_study`` is the one entry. Defaults are merged, every sweep expanded, every value typed, and every run given its seeds;
what comes out needs no further decision. The keys of the file are the models in ``study_keys.py``, ``arrivals.py``,
``lengths.py`` and ``prompts.py``, and the options of ``engine.config.EngineConfig``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workload.arrivals import parse_arrivals
from workload.engine_options import check_engine_options
from workload.known_queue import KnownQueue, parse_target
from workload.lengths import (
    JointSpec,
    LengthSpec,
    PredictionSpec,
    TraceLengths,
    parse_length_source,
    parse_lengths,
)
from workload.processes.base import ArrivalSpec
from workload.processes.responsive import Sessions
from workload.prompts import PromptSpec, parse_prompts
from workload.schema import Path as KeyPath
from workload.schema import SpecError, did_you_mean, validate
from workload.seeds import Seeds, run_seeds
from workload.study_checks import TraceChecks, check_load_references, check_spans, find_file, split_load
from workload.study_file import StudyError, StudyFile
from workload.study_keys import (
    SLO,
    CalibrationKeys,
    ExperimentKeys,
    Limit,
    OutputKeys,
    PriorityMix,
    RecordKeys,
    Span,
    StudyKeys,
    WorkloadKeys,
)
from workload.sweep import Point, Section, expand, folder_safe

RESERVED_NAMES = ("calibration", "hdr", "figures", "tables")
SECTIONS = tuple(name for name in WorkloadKeys.model_fields if name != "natural")
NO_MODEL = "none"  # of a run against a known queue
OF_AN_ENGINE = ("engine", "workload", *WorkloadKeys.model_fields)  # keys that mean nothing to a queue without tokens


@dataclass(frozen=True)
class RunSpec:
    """One run, fully decided: what is offered to which engine for how long, with which seeds.

    ``prompt`` and ``output`` are the laws of the lengths; both are ``None`` where ``length_source`` gives the two
    together. ``arrivals`` holds a rate or a load; a load is a share of the capacity of :meth:`Study.capacity_run`.
    ``engine`` holds the options given (no model, no seed). ``target`` is a known queue in place of the engine.
    ``seeds`` are new in every replication, equal in its repeats, and shared by all points of an experiment and by all
    experiments of one ``seed_group`` (common random numbers).
    """

    study: str
    experiment: str
    point: str
    replication: int
    repeat: int
    repeats: int
    model: str
    engine: dict[str, Any]
    target: KnownQueue | None
    arrivals: ArrivalSpec
    load_of: str | None
    prompt: LengthSpec | None
    output: LengthSpec | None
    length_source: JointSpec | TraceLengths | None
    natural: bool
    prompts: PromptSpec
    predicted_output: PredictionSpec
    warmup: Span
    measure: Span
    cooldown: Limit
    max_concurrency: int | None
    timeout: Limit | None
    priority: PriorityMix | None
    record: RecordKeys
    slo: SLO
    compare: tuple[str, ...]
    seed_group: str
    seeds: Seeds

    @property
    def run_dir(self) -> str:
        """The folder of the run, relative to the study's results."""
        last = str(self.replication) if self.repeats == 1 else f"{self.replication}.{self.repeat}"
        return f"{self.experiment}/{self.point}/{last}"

    @property
    def mix_key(self) -> str:
        """Equal for runs with one capacity: same model, engine options, lengths and prompts (12 hex digits)."""
        described = self.to_dict()
        names = ("model", "engine", "target", "prompt", "output", "length_source", "natural", "prompts")
        parts: dict[str, Any] = {name: described[name] for name in names}
        if self.length_source is not None and self.length_source.source == "trace":
            parts["trace"] = {key: value for key, value in described["arrivals"].items() if key not in ("rate", "load")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Everything above as plain JSON values, for run.json."""
        return {name: _jsonable(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Study:
    """A study file, expanded. ``runs`` are in the order of the file, sweeps inside, replications innermost."""

    name: str
    path: Path
    model: str | None
    seed: int
    slo: SLO
    calibration: CalibrationKeys
    outputs: OutputKeys
    runs: tuple[RunSpec, ...]

    @property
    def experiments(self) -> list[str]:
        """The names of the experiments, in the order of the file."""
        return list(dict.fromkeys(run.experiment for run in self.runs))

    def capacity_run(self, run: RunSpec) -> RunSpec:
        """The run whose engine and request mix define the capacity that ``run``'s load is a share of: itself, or the first
        of the experiment named in ``load: {of: NAME}``."""
        if run.load_of is None:
            return run
        return next(other for other in self.runs if other.experiment == run.load_of)


def load_study(path: str | Path, seed: int | None = None, models: Sequence[str] | None = None) -> Study:
    """Read, check and expand a study.

    Args:
        path: the YAML file. Relative paths inside it are taken from its folder.
        seed: replaces the file's seed.
        models: names allowed under ``compare``; ``None`` checks only that they are names.

    Raises:
        StudyError: (a ValueError) one line with file, line, key, what was found and what is allowed.
    """
    file = StudyFile(path)
    try:
        return _Loader(file, seed, models).study()
    except SpecError as error:
        raise file.error(error) from None


class _Loader:
    """One reading of one file; holds what every experiment needs."""

    def __init__(self, file: StudyFile, seed: int | None, models: Sequence[str] | None) -> None:
        self.file = file
        self.models = models
        self.traces = TraceChecks()
        self.keys = validate(StudyKeys, file.data)
        self.seed = self.keys.seed if seed is None else seed
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be a whole number of at least 0")
        self.name = self.keys.name or folder_safe(file.path.stem)
        self.defaults = validate(WorkloadKeys, self.keys.workload, ("workload",))
        self.slo = validate(SLO, self.keys.slo, ("slo",))

    def study(self) -> Study:
        if not self.keys.experiments:
            raise SpecError(("experiments",), "found no experiment; a list of at least one is allowed")
        parsed = [validate(ExperimentKeys, raw, ("experiments", i)) for i, raw in enumerate(self.keys.experiments)]
        seen: dict[str, int] = {}
        for i, keys in enumerate(parsed):
            if keys.name in RESERVED_NAMES:
                names = ", ".join(RESERVED_NAMES)
                raise SpecError(
                    ("experiments", i, "name"), f"found {keys.name!r}; folders of the study itself are {names}"
                )
            if keys.name in seen:
                first = self.file.line(("experiments", seen[keys.name], "name"))
                raise SpecError(
                    ("experiments", i, "name"), f"found {keys.name!r} again (first on line {first}); names are unique"
                )
            seen[keys.name] = i
        runs = tuple(run for i, keys in enumerate(parsed) for run in self.experiment_runs(i, keys))
        check_load_references(runs, seen)
        top = self.keys
        return Study(self.name, self.file.path, top.model, self.seed, self.slo, top.calibration, top.outputs, runs)

    def experiment_runs(self, index: int, keys: ExperimentKeys) -> list[RunSpec]:
        where: KeyPath = ("experiments", index)
        self.check_compare(keys.compare, where)
        sections, natural = self.sections(keys, where)
        slo_raw = {**self.keys.slo, **keys.slo}
        slo = validate(SLO, slo_raw, (*where, "slo")) if keys.slo else self.slo
        runs: list[RunSpec] = []
        labels: set[str] = set()
        for point in expand(sections, keys.zip, where):
            parts = self.typed(point, sections)
            if keys.priority is not None and isinstance(parts["arrivals"], Sessions):
                problem = "given with sessions, whose turns all have priority 0; another arrival process is needed"
                raise SpecError((*where, "priority"), problem)
            check_spans(parts["arrivals"], keys.warmup, keys.measure, where)
            place = point.locate(sections, "arrivals", ())
            self.traces.check(parts["arrivals"], parts["length_source"], parts["prompts"], place)
            label = point.label or _default_label(parts["arrivals"])
            assert label not in labels
            labels.add(label)
            group = keys.seed_group or keys.name
            for replication in range(keys.replications):
                for repeat in range(keys.repeats):
                    runs.append(
                        RunSpec(
                            study=self.name,
                            experiment=keys.name,
                            point=label,
                            replication=replication,
                            repeat=repeat,
                            repeats=keys.repeats,
                            natural=natural,
                            warmup=keys.warmup,
                            measure=keys.measure,
                            cooldown=keys.cooldown,
                            max_concurrency=keys.max_concurrency,
                            timeout=keys.timeout,
                            priority=keys.priority,
                            record=keys.record,
                            slo=slo,
                            compare=keys.compare,
                            seed_group=group,
                            seeds=run_seeds(self.seed, group, replication),
                            **parts,
                        )
                    )
        return runs

    def sections(self, keys: ExperimentKeys, where: KeyPath) -> tuple[dict[str, Section], bool]:
        """The plain values of one experiment, defaults merged, each with where it was written."""
        if keys.target is not None:
            return self.queue_sections(keys, where), False
        if self.keys.model is None:
            raise SpecError((), "the key 'model' is missing; only experiments with a 'target' can do without")
        inner = validate(WorkloadKeys, keys.workload, (*where, "workload"))
        given: dict[str, Section] = {}
        for name in WorkloadKeys.model_fields:
            here, nested = name in keys.model_fields_set, name in inner.model_fields_set
            if here and nested:
                raise SpecError((*where, name), "given here and under 'workload' of the same experiment; give it once")
            if here:
                given[name] = Section(getattr(keys, name), (*where, name))
            elif nested:
                given[name] = Section(getattr(inner, name), (*where, "workload", name))
        pair = [name for name in ("prompt", "output") if name in given]
        if "lengths" in given and pair:
            raise SpecError(
                given[pair[0]].origin, "given beside 'lengths', which gives both lengths; give one or the other"
            )
        for name in WorkloadKeys.model_fields:
            replaced = (name == "lengths" and bool(pair)) or (name in ("prompt", "output") and "lengths" in given)
            if name not in given and name in self.defaults.model_fields_set and not replaced:
                given[name] = Section(getattr(self.defaults, name), ("workload", name))
        natural = bool(given.pop("natural").value) if "natural" in given else False
        engine = {**self.keys.engine, **keys.engine}
        origins: dict[str, KeyPath] = {name: ("engine", name) for name in self.keys.engine}
        origins |= {name: (*where, "engine", name) for name in keys.engine}
        given["engine"] = Section(engine, (*where, "engine") if keys.engine else ("engine",), origins)
        given["arrivals"] = Section(keys.arrivals, (*where, "arrivals"))
        if "lengths" not in given:
            for name in ("prompt", "output"):
                if name not in given:
                    raise SpecError(where, f"no {name} lengths: the key {name!r} is missing here and under 'workload'")
        return given, natural

    def queue_sections(self, keys: ExperimentKeys, where: KeyPath) -> dict[str, Section]:
        """The same for a known queue: no engine, and one token in and out; the study's defaults are of engines."""
        for name in OF_AN_ENGINE:
            if name in keys.model_fields_set:
                raise SpecError((*where, name), "given beside 'target': a known queue has no engine and no tokens")
        given = {name: Section(1, (*where, "target")) for name in ("prompt", "output")}
        given["engine"] = Section({}, (*where, "target"))
        given["arrivals"] = Section(keys.arrivals, (*where, "arrivals"))
        given["target"] = Section(keys.target, (*where, "target"))
        return given

    def typed(self, point: Point, sections: Mapping[str, Section]) -> dict[str, Any]:
        """The typed parts of one point."""
        values = {
            name: self.with_paths(value, partial(point.locate, sections, name))
            for name, value in point.sections.items()
        }
        load_of = None
        arrivals = values["arrivals"]
        if isinstance(arrivals, Mapping) and isinstance(arrivals.get("load"), Mapping):
            load_of, arrivals = split_load(arrivals, point, sections)
        parts: dict[str, Any] = {"load_of": load_of}

        def build(name: str, parse: Any, value: Any) -> Any:
            try:
                return parse(value)
            except SpecError as error:
                raise SpecError(point.locate(sections, name, error.path), error.problem, at_key=error.at_key) from None

        parts["arrivals"] = build("arrivals", parse_arrivals, arrivals)
        parts["engine"] = build("engine", check_engine_options, values["engine"])
        parts["target"] = build("target", parse_target, values["target"]) if "target" in values else None
        parts["model"] = NO_MODEL if parts["target"] is not None else self.keys.model
        for name in ("prompt", "output"):
            parts[name] = build(name, parse_lengths, values[name]) if name in values else None
        source = build("lengths", parse_length_source, values["lengths"]) if "lengths" in values else None
        parts["length_source"] = source
        if isinstance(source, TraceLengths) and parts["arrivals"].process != "trace":
            found = parts["arrivals"].process
            raise SpecError(
                sections["lengths"].locate(("from",)),
                f"found 'trace', but the arrivals are {found!r}; process: trace is needed",
            )
        parts["prompts"] = build("prompts", parse_prompts, values.get("prompts", {"kind": "random"}))
        predicted = values.get("predicted_output", {})
        parts["predicted_output"] = build("predicted_output", lambda value: validate(PredictionSpec, value), predicted)
        return parts

    def with_paths(self, value: Any, locate: Callable[[KeyPath], KeyPath], path: KeyPath = ()) -> Any:
        """File names (under ``path`` and ``tokenizer``) as files that are there (see ``find_file``)."""
        if not isinstance(value, Mapping):
            return value
        replaced = {key: self.with_paths(item, locate, (*path, key)) for key, item in value.items()}
        for key in ("path", "tokenizer"):
            if isinstance(value.get(key), str):
                try:
                    replaced[key] = str(find_file(self.file.path.parent, value[key]))
                except FileNotFoundError as error:
                    raise SpecError(locate((*path, key)), f"found {value[key]!r}; {error}") from None
        return replaced

    def check_compare(self, names: tuple[str, ...], where: KeyPath) -> None:
        for i, name in enumerate(names):
            if self.models is not None and name not in self.models:
                raise SpecError((*where, "compare", i), f"found {name!r}; {did_you_mean(name, list(self.models))}")


def _default_label(arrivals: ArrivalSpec) -> str:
    """The point's name where nothing is swept."""
    for name in ("load", "rate", "clients"):
        value = getattr(arrivals, name, None)
        if value is not None:
            return f"{name}={folder_safe(value)}"
    return arrivals.process


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Seeds):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_jsonable(item) for item in value]
    return value


__all__ = ["RunSpec", "Study", "StudyError", "load_study"]
