"""The plan: what a manifest asks for, as canonical JSON. No comment, order or default of the manifest is left in it.

Two parts of it are plans of their own: what the export depends on, and what lowering depends on. What is in neither,
the report's options and the checks, is read at the end and lowers nothing again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from etbuild.errors import DocumentPath, InputError, Position, Problem

Plan = dict[str, Any]
SCHEMA, EXPORT_SCHEMA, LOWER_SCHEMA = "executorch-plan/v2", "executorch-export-plan/v1", "executorch-lower-plan/v1"


def reduce(manifest: dict[str, Any]) -> Plan:
    """The plan of a checked manifest.

    Every default is filled in, what `defaults` says is written into each method, and mappings are sorted by key: a
    factory gets its `kwargs` in that order, whatever the manifest's is.
    """
    model = manifest["model"]
    weights = model.get("weights", [])
    plan = {
        "schema": SCHEMA,
        "name": manifest["name"],
        "model": {
            "factory": model["factory"],
            "kwargs": model.get("kwargs", {}),
            "seed": model.get("seed", 0),
            "weights": weights if isinstance(weights, list) else [weights],
            "modules": sorted(model.get("modules", [])),
        },
        "methods": {
            name: _reduce_method(name, method, manifest.get("defaults", {}))
            for name, method in manifest["methods"].items()
        },
        "constant_methods": manifest.get("constant_methods", {}),
        "named_data": {
            tag: {"parameters": sorted(entry["parameters"]), "shard_size": entry.get("shard_size")}
            for tag, entry in manifest.get("named_data", {}).items()
        },
        "report": {"operators": True, "blobs": True, **manifest.get("report", {})},
        "checks": manifest.get("checks", {}),
    }
    return dict(json.loads(canonical_json(plan)))


def _reduce_method(name: str, method: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    inputs = [_reduce_example(example) for example in method["example_inputs"]]
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, dict):
        inherited = inherited.get(name, [])
    return {
        "entry": method.get("entry", name),
        "example_inputs": inputs,
        "dynamic_shapes": [_reduce_dims(dims) for dims in method.get("dynamic_shapes", [None] * len(inputs))],
        "strict": method.get("strict", defaults.get("strict", False)),
        "partitioners": [_reduce_partitioner(entry) for entry in method.get("partitioners", inherited)],
    }


def _reduce_example(example: dict[str, Any]) -> dict[str, Any]:
    if "shape" in example:
        return {"dtype": "float32", "fill": "zeros", **example}
    return {"kwargs": {}, **example} if "factory" in example else dict(example)


def _reduce_dims(dims: list[Any] | None) -> list[Any] | None:
    if dims is None or not any(dims):
        return None
    return [None if dim is None else {"min": 1, **dim} for dim in dims]


def _reduce_partitioner(entry: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"backend": entry, "options": {}}
    return {"backend": entry["backend"], "options": entry.get("options", {})}


def read(path: Path, schema: str) -> Plan:
    """A plan that another step wrote.

    Args:
        path: The file.
        schema: `SCHEMA`, or that of a part.

    Raises:
        InputError: It is none, or another one.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError([Problem(f"{path}: not a plan: {error}")]) from None
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError([Problem(f"{path}: not a plan of the schema {schema}", hint="`etbuild plan` writes them")])
    return content


def export_plan(plan: Plan) -> Plan:
    """The part that the export depends on.

    `weights` says whether the weights come from files: lowering then brings them, and the export leaves them out.
    `custom_partitioners` are the callables whose sources lowering needs.
    """
    model = plan["model"]
    keys = ("entry", "example_inputs", "dynamic_shapes", "strict")
    return {
        "schema": EXPORT_SCHEMA,
        "model": {**{key: model[key] for key in ("factory", "kwargs", "seed", "modules")}},
        "weights": bool(model["weights"]),
        "methods": {name: {key: method[key] for key in keys} for name, method in plan["methods"].items()},
        "custom_partitioners": _custom_partitioners(plan),
    }


def lower_plan(plan: Plan) -> Plan:
    """The part that lowering depends on, besides what was exported."""
    return {
        "schema": LOWER_SCHEMA,
        "name": plan["name"],
        "weights": plan["model"]["weights"],
        "methods": {name: {"partitioners": method["partitioners"]} for name, method in plan["methods"].items()},
        "constant_methods": plan["constant_methods"],
        "named_data": plan["named_data"],
    }


def method_plan(lower_plan: Plan, name: str) -> Plan:
    """The part of a lower plan that lowering one method by itself depends on."""
    return {**lower_plan, "methods": {name: lower_plan["methods"][name]}, "constant_methods": {}}


def _custom_partitioners(plan: Plan) -> list[str]:
    entries = [entry for method in plan["methods"].values() for entry in method["partitioners"]]
    return sorted({entry["options"]["factory"] for entry in entries if entry["backend"] == "custom"})


def tags(plan: Plan) -> list[str]:
    """The plan's named-data tags, sorted."""
    return sorted(plan["named_data"])


def backends(plan: Plan) -> list[str]:
    """The backends that methods of the plan name, sorted."""
    return sorted({entry["backend"] for method in plan["methods"].values() for entry in method["partitioners"]})


def sharded_tags(plan: Plan) -> list[str]:
    """Those of them whose weights are split over several files, sorted."""
    return [tag for tag in tags(plan) if plan["named_data"][tag]["shard_size"] is not None]


def callables(export_plan: Plan) -> list[str]:
    """Every `module:callable` of an export plan, sorted: the roots of the sources that it uses."""
    found = {export_plan["model"]["factory"], *export_plan["custom_partitioners"]}
    for method in export_plan["methods"].values():
        found.update(example["factory"] for example in method["example_inputs"] if "factory" in example)
    return sorted(found)


def weights_names(lower_plan: Plan) -> dict[str, DocumentPath]:
    """The declared inputs that hold the weights, each with the place that names it first."""
    found: dict[str, DocumentPath] = {}
    for index, name in enumerate(lower_plan["weights"]):
        found.setdefault(name, ("model", "weights", index))
    return found


def example_names(export_plan: Plan) -> dict[str, DocumentPath]:
    """The declared inputs that hold example inputs, each with the place that names it first."""
    found: dict[str, DocumentPath] = {}
    for method_name, method in export_plan["methods"].items():
        for index, example in enumerate(method["example_inputs"]):
            if "file" in example:
                found.setdefault(example["file"], ("methods", method_name, "example_inputs", index, "file"))
    return found


def data_names(plan: Plan) -> dict[str, DocumentPath]:
    """All declared inputs that a plan reads, each with the place that names it first."""
    return {**weights_names(lower_plan(plan)), **example_names(export_plan(plan))}


def check_expectations(plan: Plan, expected: dict[str, list[str] | None]) -> None:
    """Compares what the build rule says of the program with what the manifest says.

    Args:
        plan: The plan.
        expected: By attribute of the rule (`name`, `methods`, `backends`, `named_data`, `sharded_named_data`) its
            values; None: not said.

    Raises:
        InputError: They differ. Says what to write into the BUILD file.
    """
    actual = {
        "name": [plan["name"]],
        "methods": sorted(plan["methods"]),
        "backends": backends(plan),
        "named_data": [tag for tag in tags(plan) if tag not in sharded_tags(plan)],
        "sharded_named_data": sharded_tags(plan),
    }
    problems = []
    for attribute, values in expected.items():
        if values is not None and sorted(values) != actual[attribute]:
            wanted = json.dumps(actual[attribute][0] if attribute == "name" else actual[attribute])
            path: DocumentPath = {"backends": (), "sharded_named_data": ("named_data",)}.get(attribute, (attribute,))
            said = json.dumps(values[0] if attribute == "name" else sorted(values))
            problems.append(
                Problem(
                    f"the manifest and the target differ: the target's `{attribute}` is {said}",
                    path,
                    f"write `{attribute} = {wanted}` into the BUILD file, or change the manifest",
                )
            )
    if problems:
        raise InputError(problems)


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no white space and a final newline: equal values, equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def digest(value: Any) -> str:
    """sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def positions_to_json(positions: dict[DocumentPath, Position]) -> list[Any]:
    """Positions as JSON data, for the file that stands beside a plan."""
    return [[list(path), p.file, p.line, p.column] for path, p in positions.items()]


def positions_from_json(data: list[Any]) -> dict[DocumentPath, Position]:
    """The reverse of `positions_to_json`."""
    return {tuple(path): Position(file, line, column) for path, file, line, column in data}
