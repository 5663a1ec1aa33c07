"""The types of a checked manifest have the keys of its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import pytest

from etbuild.manifest import sections

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas/model.schema.json").read_text("utf-8"))
# The place of each type in a manifest; `*` is any name or index.
PLACES = {
    "TextCheck": "checks.text",
    "Manifest": "",
    "Model": "model",
    "HuggingFace": "model.huggingface",
    "Cache": "model.huggingface.cache",
    "Dense": "model.huggingface.dense.*",
    "Checkpoint": "model.weights.*",
    "Adapter": "model.adapters.*",
    "Recipe": "recipe",
    "Parameter": "parameters.*",
    "Method": "methods.*",
    "ExampleInput": "methods.*.example_inputs.*",
    "BackendEntry": "methods.*.partitioners.*",
    "Quantize": "methods.*.quantize",
    "Torchao": "methods.*.quantize.torchao.*",
    "Pt2e": "methods.*.quantize.pt2e",
    "Calibration": "methods.*.quantize.pt2e.calibration",
    "Defaults": "defaults",
    "NamedData": "named_data.*",
    "Metadata": "metadata",
    "Executorch": "executorch",
    "Checks": "checks",
    "Compare": "checks.compare",
    "CompareMethod": "checks.compare.methods.*",
    "Metric": "checks.metric.*",
    "Tests": "tests",
    "TestsOfMethod": "tests.methods.*",
    "Case": "tests.cases.*",
    "Call": "tests.cases.*.calls.*",
}
# Keys that only the driver writes, when it completes a manifest.
WRITTEN_BY_TASKS = {"ExampleInput": {"of_model", "length"}}
TYPES = {
    name for name, value in vars(sections).items() if is_typeddict(value) and value.__module__ == sections.__name__
}


def alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, and what it refers to and consists of."""
    yield schema
    if "$ref" in schema:
        yield from alternatives(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    for kind in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(kind, []):
            yield from alternatives(part)


def below(schemas: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    keys = ("additionalProperties", "items") if name == "*" else ()
    found = [schema[key] for schema in schemas for key in keys if isinstance(schema.get(key), dict)]
    found += [schema["properties"][name] for schema in schemas if name in schema.get("properties", {})]
    return [each for schema in found for each in alternatives(schema)]


def properties(place: str) -> set[str]:
    schemas = [*alternatives(SCHEMA)]
    for name in place.split(".") if place else ():
        schemas = below(schemas, name)
    return {key for schema in schemas for key in schema.get("properties", {})}


@pytest.mark.parametrize("name", sorted(TYPES - {"Dim"}))
def test_a_type_has_the_keys_of_its_schema(name: str) -> None:
    keys = set(get_type_hints(getattr(sections, name)))
    assert keys - WRITTEN_BY_TASKS.get(name, set()) == properties(PLACES[name]), PLACES[name]


def test_a_dimension_has_the_keys_of_its_schema() -> None:
    """Dynamic shapes have the form of their inputs, so a dimension has no place of its own."""
    assert set(get_type_hints(sections.Dim)) == SCHEMA["$defs"]["dim"]["properties"].keys()
