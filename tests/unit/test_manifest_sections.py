"""The schemas of manifests and plans, and the types of a manifest's data, are those that classes of plans describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest

from etbuild import plugins
from etbuild.files.digests import canonical_json
from etbuild.plan.part import PLAN_ONLY, Part, PluginKeys, Says
from etbuild.plan.plan import Plan, from_manifest
from etbuild.plan.step_plans import read_plan
from tools.reference import ROOT, manifest_forms, schemas


def test_the_files_are_current() -> None:
    for name, text in schemas.files().items():
        assert (ROOT / name).read_text("utf-8") == text, f"run `make reference`: {name} is not current"


NET: Any = {"schema": "executorch-model/v1", "name": "net", "model": {"factory": "net:create"}}


class Lamp(Part, section="WrittenLamp", short="color", also=str, maxProperties=3):
    """A lamp. For example `red`.

    Attributes:
        color: What it looks
            like. For example `red`, `"#f00"`.
        watts: How bright it is.
        place: Where the manifest has it.
    """

    _LEFT_OUT = ("watts",)

    color: str
    watts: Annotated[int, Says(minimum=1)] | None = None
    lenses: Annotated[tuple[float, ...], Says(one=True)] = ()
    place: Annotated[str, PLAN_ONLY] = "ceiling"


def test_a_class_describes_a_section_and_its_part_of_a_plan() -> None:
    of_manifest = {
        "type": "object",
        "required": ["color"],
        "additionalProperties": False,
        "properties": {
            "color": {"description": "What it looks like.", "examples": ["red", "#f00"], "type": "string"},
            "watts": {"description": "How bright it is.", "type": "integer", "minimum": 1},
            "lenses": {
                "anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}],
                "default": [],
            },
        },
        "maxProperties": 3,
    }
    assert schemas.of_manifest(Lamp) == {"anyOf": [{"type": "string"}, of_manifest]}
    assert schemas.of_plan(Lamp) == {
        "type": "object",
        "required": ["color", "lenses", "place"],
        "additionalProperties": False,
        "properties": {
            "color": {"type": "string"},
            "watts": {"type": "integer", "minimum": 1},
            "lenses": {"type": "array", "items": {"type": "number"}},
            "place": {"type": "string"},
        },
    }
    assert Lamp.from_json("red") == Lamp("red")
    assert Lamp.from_json({"color": "red", "lenses": 2}).to_json() == {
        "color": "red",
        "lenses": [2],
        "place": "ceiling",
    }


class Room(Part):
    """A room.

    Attributes:
        lamp: What lights it. For example `red`.
    """

    lamp: Annotated[Part, PluginKeys("room.lamp")]


def test_a_plugin_describes_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load", lambda group, place: {("manifest_keys", "room.lamp"): Lamp}[group, place])
    assert Room.from_json({"lamp": "red"}) == Room(Lamp("red"))
    [lamp] = schemas.of_manifest(Room)["properties"].values()
    assert lamp["description"] == "What lights it."
    assert lamp["anyOf"] == schemas.of_manifest(Lamp)["anyOf"]
    assert schemas.of_plan(Room)["properties"] == {"lamp": {"$ref": "#/$defs/lamp"}}


def test_a_plan_has_the_checks_as_the_manifest_has_them(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"tolerance": {"rtol": 0.1}, "ranges": [None, [0, 1.5]]}
    checks: Any = {
        "max_memory_bytes": {"forward": 1},
        "min_delegated": 0.5,
        "compare": {"methods": {"forward": limits}},
    }
    method: Any = {"example_inputs": [{"shape": [1]}, {"shape": [2]}], "partitioners": ["xnnpack"]}
    manifest: Any = {**NET, "methods": {"forward": method}, "checks": checks, "metadata": {"authors": ["a"]}}
    plan = from_manifest(manifest)
    (tmp_path / "plan.json").write_bytes(canonical_json(plan.to_json()))
    assert read_plan(tmp_path / "plan.json", Plan) == plan


@pytest.mark.parametrize("name", ["model", "plan"])
def test_each_definition_is_used(name: str) -> None:
    schema = json.loads((ROOT / f"schemas/{name}.schema.json").read_text("utf-8"))
    used = set(json.dumps(schema).split('"#/$defs/')[1:])
    named = {each.partition('"')[0] for each in used}
    documents = (
        {"plan", "exportPlan", "methodPlan", "lowerPlan", "comparePlan", "positions"} if name == "plan" else set()
    )
    assert schema["$defs"].keys() - named == documents - named


def test_every_key_of_a_manifest_has_a_description() -> None:
    schema = json.loads((ROOT / "schemas/model.schema.json").read_text("utf-8"))
    form = manifest_forms.Manifest
    assert schema["properties"].keys() == {form._KEYS.get(name, name) for name in form._FIELDS}
    waiting = [schema, *schema["$defs"].values()]
    while waiting:
        node = waiting.pop()
        for key, value in node.get("properties", {}).items():
            assert "description" in value or "$ref" in value, key
            waiting.append(value)
