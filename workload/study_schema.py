"""The JSON schema of a study file, for editors, and the reference page of every key, both from the models themselves.

``python -m workload.study_schema FOLDER`` writes ``experiments.schema.json`` and ``experiments.md`` into FOLDER.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter

from engine.config import EngineConfig
from workload.arrivals import PROCESSES
from workload.durations import DURATIONS
from workload.engine_options import engine_option_names
from workload.known_queue import TARGETS
from workload.lengths import DISTRIBUTIONS, SOURCES, PredictionSpec
from workload.prompts import KINDS
from workload.study_keys import SLO, ExperimentKeys, StudyKeys, WorkloadKeys

Schema = dict[str, Any]

BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}  # pydantic's to JSON's
LOAD_OF: Schema = {
    "type": "object",
    "description": "share of the capacity of another experiment's engine and request mix",
    "properties": {"of": {"type": "string"}, "value": {"type": ["number", "array"]}},
    "required": ["of", "value"],
    "additionalProperties": False,
}


def study_json_schema() -> Schema:
    """The JSON schema (draft 2020-12) of a study file. A list is allowed wherever it would sweep."""
    sections = {
        "prompt": _swept(_ref("length")),
        "output": _swept(_ref("length")),
        "lengths": _swept(_ref("length_source")),
        "prompts": _swept(_ref("contents")),
        "predicted_output": _swept(_ref("prediction")),
    }
    shared = {"engine": _ref("engine"), "workload": _ref("workload"), "slo": _ref("slo")}
    definitions = {
        "length": {"anyOf": [_either(DISTRIBUTIONS), {"type": "integer", "minimum": 1}]},
        "length_source": _either(SOURCES),
        "duration": {"anyOf": [_either(DURATIONS), {"type": "number", "minimum": 0}]},
        "contents": _either(KINDS),
        "prediction": _sweepable(_plain(PredictionSpec)),
        "arrivals": _arrivals(),
        "target": _either(TARGETS),
        "engine": engine_schema(),
        "slo": _plain(SLO),
        "workload": _with(_plain(WorkloadKeys), sections),
        "experiment": _with(
            _plain(ExperimentKeys),
            {**sections, **shared, "arrivals": _swept(_ref("arrivals")), "target": _swept(_ref("target"))},
        ),
    }
    experiments = {"type": "array", "minItems": 1, "items": _ref("experiment")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Latency Lab study",
        **_with(_plain(StudyKeys), {**shared, "experiments": experiments}),
        "$defs": definitions,
    }


def engine_schema() -> Schema:
    """The engine options that a study may set."""
    hints = get_type_hints(EngineConfig)
    described = _engine_descriptions()
    properties: Schema = {}
    for field in fields(EngineConfig):
        if field.name in engine_option_names():
            schema = TypeAdapter(hints[field.name]).json_schema()
            properties[field.name] = _swept({**schema, "description": described[field.name], **_engine_default(field)})
    return {"type": "object", "properties": properties, "additionalProperties": False}


def reference_page() -> str:
    """Every key of a study file, as Markdown."""
    parts = [
        "# experiments.yaml: every key\n",
        "Written by `python -m workload.study_schema docs`. Under `arrivals`, `engine`, `prompt`, `output`, `lengths`, "
        "`prompts`, `predicted_output` and `target` a list where one value belongs sweeps. `prompt`, `output`, a think "
        "time and a service time may be a plain number.\n",
        "## Top level\n",
        _table(StudyKeys),
        "## An experiment\n",
        _table(ExperimentKeys),
        "## Objectives: `slo`\n",
        _table(SLO),
        "## Engine options: `engine`\n",
        _engine_table(),
    ]
    groups: list[tuple[str, Mapping[str, type[BaseModel]], str]] = [
        ("Arrivals: `arrivals`", PROCESSES, "process"),
        ("Lengths: `prompt`, `output`, `turns`", DISTRIBUTIONS, "dist"),
        ("Both lengths together: `lengths`", SOURCES, "from"),
        ("Contents: `prompts`", KINDS, "kind"),
        ("Think times and service times: `think`, `service`", DURATIONS, "dist"),
        ("A known queue: `target`", TARGETS, "kind"),
        ("Predicted output length: `predicted_output`", {"": PredictionSpec}, ""),
    ]
    for title, models, tag in groups:
        parts.append(f"## {title}\n")
        for name, model in models.items():
            if tag:
                parts.append(f"### `{tag}: {name}`\n")
            parts.append(f"{inspect.cleandoc(model.__doc__ or '')}\n")
            parts.append(_table(model, without=tag))
    return "\n".join(part for part in parts if part)


def main(arguments: list[str]) -> int:
    """Write both files into the folder given."""
    if len(arguments) != 1:
        print("usage: python -m workload.study_schema FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiments.schema.json").write_text(json.dumps(study_json_schema(), indent=1) + "\n", encoding="utf-8")
    (folder / "experiments.md").write_text(reference_page(), encoding="utf-8")
    return 0


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _arrivals() -> Schema:
    schema = _either(PROCESSES)
    for option in schema["anyOf"]:
        if "load" in option["properties"]:
            option["properties"]["load"]["anyOf"].append(LOAD_OF)
    return schema


def _either(models: Mapping[str, type[BaseModel]]) -> Schema:
    """Any of the variants of a tagged section, every value of it sweepable."""
    return {"anyOf": [_sweepable(_plain(model)) for model in models.values()]}


def _plain(model: type[BaseModel]) -> Schema:
    """A model's own schema, references resolved, titles left out."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return resolve({**definitions[node["$ref"].rsplit("/", 1)[1]], **rest})
        return {
            BOUNDS.get(key, key): {name: resolve(item) for name, item in value.items()}
            if key == "properties"
            else resolve(value)
            for key, value in node.items()
            if key != "title" or isinstance(value, dict)
        }

    resolved: Schema = resolve(schema)
    for name, law in (
        ("think", "duration"),
        ("turns", "length"),
        ("service", "duration"),
    ):  # nested laws, typed by registries of their own
        if name in resolved.get("properties", {}):
            about = resolved["properties"][name].get("description", "")
            resolved["properties"][name] = {**_ref(law), "description": about}
    return resolved


def _sweepable(schema: Schema) -> Schema:
    return {**schema, "properties": {name: _swept(value) for name, value in schema["properties"].items()}}


def _swept(schema: Schema) -> Schema:
    """One value, or a list of them."""
    about: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    one = {key: value for key, value in schema.items() if key not in about}
    several = (
        {"contains": one} if "const" in one else {"items": one}
    )  # other items of a swept tag match the other variants
    return {"anyOf": [one, {"type": "array", **several, "minItems": 1}], **about}


def _with(schema: Schema, replaced: Mapping[str, Schema]) -> Schema:
    """``schema`` with the properties that other models describe; what they are for stays."""
    properties = dict(schema["properties"])
    for name, value in replaced.items():
        about = {"description": properties[name]["description"]} if "description" in properties[name] else {}
        properties[name] = {**value, **about}
    return {**schema, "properties": properties}


def _table(model: type[BaseModel], without: str = "") -> str:
    rows = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key == without:
            continue
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        rows.append(f"| `{key}` | {field.description or ''} | {default} |")
    return "| key | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n" if rows else ""


def _default(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = {key: item for key, item in value.model_dump(by_alias=True).items() if item is not None}
    return "" if value is None or value in ({}, ()) else f"`{json.dumps(value)}`"


def _engine_table() -> str:
    described = _engine_descriptions()
    rows = [
        f"| `{field.name}` | {described[field.name]} | {_default(_engine_default(field).get('default'))} |"
        for field in fields(EngineConfig)
        if field.name in engine_option_names()
    ]
    return "| option | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _engine_default(field: Field[Any]) -> Schema:
    return {} if field.default is MISSING else {"default": field.default}


def _engine_descriptions() -> dict[str, str]:
    """What the docstring of EngineConfig says of each option."""
    text = inspect.cleandoc(EngineConfig.__doc__ or "").split("Attributes:")[1].split("Raises:")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text, flags=re.MULTILINE)
    return {name: " ".join(description.replace("``", "`").split()) for name, description in found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
