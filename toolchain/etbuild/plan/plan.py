"""The plan: what a manifest asks for, as canonical JSON. No comment, order or default of the manifest is left in it.

Two parts of it are plans of their own: what the export depends on, and what lowering depends on. What is in neither,
the report's options and the checks, is read at the end and lowers nothing again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etbuild.backends import recipes
from etbuild.errors import DocumentPath, InputError, Position, Problem
from etbuild.files.digests import canonical_json
from etbuild.manifest import example_inputs, executorch_options

Plan = dict[str, Any]
SCHEMA, EXPORT_SCHEMA, LOWER_SCHEMA = "executorch-plan/v2", "executorch-export-plan/v1", "executorch-lower-plan/v1"
_PARTS = {SCHEMA: "plan#plan", EXPORT_SCHEMA: "plan#exportPlan", LOWER_SCHEMA: "plan#lowerPlan"}

QUANTIZE_HOOKS = ("pre_prepare", "post_prepare", "pre_convert", "post_convert")
"""Where passes over a method run while it is quantized, in order."""


def reduce(manifest: dict[str, Any]) -> Plan:
    """The plan of a checked manifest.

    Every default is filled in, what `defaults` says is written into each method, and mappings are sorted by key: a
    factory gets its `kwargs` in that order, whatever the manifest's is.
    """
    model = manifest.get("model", {})
    weights = model.get("weights", [])
    entry = {"entry": "forward"} if "huggingface" in model else {}
    plan = {
        "schema": SCHEMA,
        "name": manifest["name"],
        "model": {
            "factory": model.get("factory"),
            "huggingface": _reduce_huggingface(model.get("huggingface")),
            "kwargs": model.get("kwargs", {}),
            "seed": model.get("seed", 0),
            "weights": weights if isinstance(weights, list) else [weights],
            "modules": sorted(model.get("modules", [])),
        },
        "methods": {
            name: _reduce_method(name, {**entry, **method}, manifest) for name, method in manifest["methods"].items()
        },
        "recipe": recipes.reduce(manifest),
        "constant_methods": {
            name: {"kwargs": {}, **value} if isinstance(value, dict) else value
            for name, value in manifest.get("constant_methods", {}).items()
        },
        "named_data": {
            tag: {"parameters": sorted(entry["parameters"]), "shard_size": entry.get("shard_size")}
            for tag, entry in manifest.get("named_data", {}).items()
        },
        "custom_ops": {"libraries": [], "modules": [], **manifest.get("custom_ops", {})},
        **executorch_options.reduce(manifest),
        "report": {"operators": True, "blobs": True, **manifest.get("report", {})},
        "checks": manifest.get("checks", {}),
    }
    return dict(json.loads(canonical_json(plan)))


def _reduce_huggingface(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if wanted is None else {"config": {}, "cache": None, **wanted}


def _reduce_method(name: str, method: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    defaults = manifest.get("defaults", {})
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, dict):
        inherited = inherited.get(name, [])
    return {
        "program": method.get("program"),
        "entry": method.get("entry", name),
        **example_inputs.reduce(method),
        "strict": method.get("strict", defaults.get("strict", False)),
        "quantize": None if "program" in method else _reduce_quantize(method.get("quantize", defaults.get("quantize"))),
        "partitioners": [_reduce_partitioner(entry) for entry in method.get("partitioners", inherited)],
        "memory_planning": executorch_options.reduce_memory(manifest, method),
        "from_recipe": recipes.decided(manifest, name),
    }


def _reduce_quantize(quantize: dict[str, Any] | None) -> dict[str, Any] | None:
    if quantize is None:
        return None
    pt2e = quantize.get("pt2e")
    return {
        "torchao": [_reduce_torchao(entry) for entry in quantize.get("torchao", [])],
        "pt2e": None if pt2e is None else _reduce_pt2e(pt2e),
    }


def _reduce_torchao(entry: dict[str, Any]) -> dict[str, Any]:
    common = {"modules": ["*"], "layers": ["linear"], **entry}
    if ":" in entry["config"]:
        return {"kwargs": {}, **common}
    return {"group_size": 32 if "4w" in entry["config"] or entry["config"] == "int4" else None, **common}


def _reduce_pt2e(pt2e: dict[str, Any]) -> dict[str, Any]:
    calibration = pt2e.get("calibration", "example_inputs" if "quantizers" in pt2e else None)  # None: the recipe's
    batches = {} if calibration == "example_inputs" else calibration
    return {
        "quantizers": [_reduce_partitioner(entry) for entry in pt2e.get("quantizers", [])],
        "calibration": {"kwargs": {}, **batches} if batches and "factory" in batches else batches,
        "qat": pt2e.get("qat"),
        "passes": {hook: pt2e.get("passes", {}).get(hook, []) for hook in QUANTIZE_HOOKS},
    }


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
    from etbuild.files import json_file

    content: Plan = json_file.read(path, "a plan", _PARTS[schema], "`etbuild plan` writes them")
    return content


def export_plan(plan: Plan) -> Plan:
    """The part that the export depends on.

    `weights` says whether the weights come from files: lowering then brings them, and the export leaves them out.
    `read_weights` are the files that the export itself reads, since what it makes of the weights is in its methods.
    `lowering_callables` are those whose sources lowering needs.
    """
    model = plan["model"]
    keys = (*example_inputs.KEYS, "program", "entry", "strict", "quantize", "from_recipe")
    carried, constants = carries_content(plan), plan["constant_methods"].items()
    return {
        "schema": EXPORT_SCHEMA,
        "model": {**{key: model[key] for key in ("factory", "huggingface", "kwargs", "seed", "modules")}},
        "weights": bool(model["weights"]) and not carried,
        "read_weights": model["weights"] if carried else [],
        "methods": {name: {key: method[key] for key in keys} for name, method in plan["methods"].items()},
        "custom_ops": plan["custom_ops"],
        "recipe": plan["recipe"] and {key: plan["recipe"][key] for key in ("name", "kwargs")},
        "passes": plan["passes"]["aten"],
        "constant_methods": {name: value for name, value in constants if isinstance(value, dict)},
        "lowering_callables": _lowering_callables(plan),
    }


def lower_plan(plan: Plan) -> Plan:
    """The part that lowering depends on, besides what was exported."""
    return {
        "schema": LOWER_SCHEMA,
        "name": plan["name"],
        "weights": [] if carries_content(plan) else plan["model"]["weights"],
        "methods": {
            name: {"partitioners": method["partitioners"], "from_recipe": "partitioners" in method["from_recipe"]}
            for name, method in plan["methods"].items()
        },
        "recipe": plan["recipe"],
        "named_data": plan["named_data"],
        "custom_ops": plan["custom_ops"],
        "edge_compile": plan["edge_compile"],
        "passes": {hook: references for hook, references in plan["passes"].items() if hook != "aten"},
        "constant_methods": {
            name: value for name, value in plan["constant_methods"].items() if not isinstance(value, dict)
        },
        "executorch": plan["executorch"],
        "memory_planning": {name: method["memory_planning"] for name, method in plan["methods"].items()},
        "share_mutable_buffers": plan["share_mutable_buffers"],
    }


_EMISSION = ("constant_methods", "executorch", "memory_planning", "share_mutable_buffers")
"""Keys of a lower plan that are read once all methods are lowered."""


def carries_content(plan: Plan) -> bool:
    """Whether an export, given its plan or the whole one, holds the content of weights: where it is made by exporting,
    as that of quantized weights is, or comes with an exported program. A recipe may quantize."""
    return any(
        method["quantize"] or method["program"] or "quantize" in method["from_recipe"]
        for method in plan["methods"].values()
    )


def method_plan(lower_plan: Plan, name: str) -> Plan:
    """The part of a lower plan that lowering one method by itself depends on."""
    part = {key: value for key, value in lower_plan.items() if key not in _EMISSION}
    passes = {**lower_plan["passes"], "executorch": []}
    return {**part, "methods": {name: lower_plan["methods"][name]}, "passes": passes, "constant_methods": {}}


def _lowering_callables(plan: Plan) -> list[str]:
    entries = [entry for method in plan["methods"].values() for entry in method["partitioners"]]
    factories = {entry["options"]["factory"] for entry in entries if entry["backend"] == "custom"}
    return sorted(factories | _recipe_callables(plan) | executorch_options.callables(plan))


def _recipe_callables(plan: Plan) -> set[str]:
    recipe = plan["recipe"]
    return {recipe["name"]} if recipe and ":" in recipe["name"] else set()


def tags(plan: Plan) -> list[str]:
    """The plan's named-data tags, sorted."""
    return sorted(plan["named_data"])


def backends(plan: Plan) -> list[str]:
    """The backends that methods of the plan name, sorted."""
    named = {entry["backend"] for method in plan["methods"].values() for entry in method["partitioners"]}
    return sorted(named | set(_recipe_backends(plan)))


def _recipe_backends(plan: Plan) -> tuple[str, ...]:
    """The backends of the recipe of a plan, or of its part for lowering, where it decides over some method's."""
    decides = any(method["from_recipe"] for method in plan["methods"].values())
    return recipes.backends(plan["recipe"]) if plan["recipe"] and decides else ()


def used_backends(plan: Plan) -> dict[str, DocumentPath]:
    """The backends that a plan, or its part for lowering, uses: as partitioners and as quantizers. Each with the place
    that names it first."""
    found: dict[str, DocumentPath] = {}
    for path, partitioner in partitioners(plan).items():
        found.setdefault(partitioner["backend"], path)
    for name, method in plan["methods"].items():
        pt2e = (method.get("quantize") or {}).get("pt2e") or {"quantizers": []}
        for index, entry in enumerate(pt2e["quantizers"]):
            found.setdefault(entry["backend"], ("methods", name, "quantize", "pt2e", "quantizers", index))
    for backend in _recipe_backends(plan) or (["custom"] if plan["recipe"] else []):
        found.setdefault(backend, ("recipe",))
    return found


def partitioners(plan: Plan) -> dict[DocumentPath, dict[str, Any]]:
    """The partitioner entries of a plan, or of its part for lowering, by place."""
    return {
        ("methods", name, "partitioners", index): entry
        for name, method in plan["methods"].items()
        for index, entry in enumerate(method["partitioners"])
    }


def sharded_tags(plan: Plan) -> list[str]:
    """Those of them whose weights are split over several files, sorted."""
    return [tag for tag in tags(plan) if plan["named_data"][tag]["shard_size"] is not None]


def callables(export_plan: Plan) -> list[str]:
    """Every `module:callable` of an export plan, sorted: the roots of the sources that it uses."""
    found = {export_plan["model"]["factory"] or "", *export_plan["passes"], *export_plan["lowering_callables"]}
    found |= _recipe_callables(export_plan)
    found.update(entry["factory"] for entry in export_plan["constant_methods"].values())
    for name, method in export_plan["methods"].items():
        inputs = example_inputs.leaves(method, ("methods", name))
        found.update(example["factory"] for example, _ in inputs if "factory" in example)
        if method["quantize"]:
            found.update(_quantization_callables(method["quantize"]))
    return sorted(found - {""})


def _quantization_callables(quantize: dict[str, Any]) -> Iterator[str]:
    yield from (entry["config"] for entry in quantize["torchao"] if ":" in entry["config"])
    pt2e = quantize["pt2e"]
    if pt2e is not None:
        yield from (entry["options"]["factory"] for entry in pt2e["quantizers"] if entry["backend"] == "custom")
        yield from (name for names in pt2e["passes"].values() for name in names)
        yield pt2e["qat"] or ""
        if "factory" in (pt2e["calibration"] or {}):
            yield pt2e["calibration"]["factory"]


def weights_names(names: list[str]) -> dict[str, DocumentPath]:
    """Declared inputs that hold the weights, each with the place that names it first.

    Args:
        names: Of `weights` of a lower plan, or `read_weights` of an export plan.
    """
    found: dict[str, DocumentPath] = {}
    for index, name in enumerate(names):
        found.setdefault(name, ("model", "weights", index) if len(names) > 1 else ("model", "weights"))
    return found


def library_names(part: Plan) -> dict[str, DocumentPath]:
    """Declared inputs that are libraries of operators, of an export plan or a lower plan, each with its place."""
    libraries = part["custom_ops"]["libraries"]
    return {name: ("custom_ops", "libraries", index) for index, name in enumerate(libraries)}


def lower_data_names(lower_plan: Plan) -> dict[str, DocumentPath]:
    """The declared inputs that lowering reads, each with the place that names it first."""
    return {**weights_names(lower_plan["weights"]), **library_names(lower_plan)}


def export_data_names(export_plan: Plan) -> dict[str, DocumentPath]:
    """The declared inputs that the export reads, each with the place that names it first: example inputs, what methods
    are quantized with or come from, and a model's configuration."""
    found = {**weights_names(export_plan["read_weights"]), **library_names(export_plan)}
    config = (export_plan["model"]["huggingface"] or {}).get("config")
    if isinstance(config, str):
        found.setdefault(config, ("model", "huggingface", "config"))
    for method_name, method in export_plan["methods"].items():
        if method["program"] is not None:
            found.setdefault(method["program"], ("methods", method_name, "program"))
        pt2e = (method["quantize"] or {}).get("pt2e")
        if pt2e is not None and "file" in (pt2e["calibration"] or {}):
            place = ("methods", method_name, "quantize", "pt2e", "calibration", "file")
            found.setdefault(pt2e["calibration"]["file"], place)
        for example, path in example_inputs.leaves(method, ("methods", method_name)):
            if "file" in example:
                found.setdefault(example["file"], (*path, "file"))
    return found


def data_names(plan: Plan) -> dict[str, DocumentPath]:
    """All declared inputs that a plan reads, each with the place that names it first."""
    return {**weights_names(plan["model"]["weights"]), **export_data_names(export_plan(plan))}


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


def positions_to_json(positions: dict[DocumentPath, Position]) -> list[Any]:
    """Positions as JSON data, for the file that stands beside a plan."""
    return [[list(path), p.file, p.line, p.column] for path, p in positions.items()]


def positions_from_json(data: list[Any]) -> dict[DocumentPath, Position]:
    """The reverse of `positions_to_json`."""
    return {tuple(path): Position(file, line, column) for path, file, line, column in data}
