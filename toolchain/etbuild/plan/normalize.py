"""Normalizes a manifest to the JSON data that its plan is read from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from etbuild.files.digests import canonical_json
from etbuild.manifest import example_inputs, plugin_sections, weights
from etbuild.manifest.sections import Checkpoint, Manifest, Method
from etbuild.plan import parts

DECIDES = ("partitioners", "quantize", "strict")
"""The keys that a recipe decides for a method if neither the method nor `defaults` has them."""
PLAN_SCHEMA = "executorch-plan/v2"


def normalized(manifest: Manifest) -> dict[str, object]:
    """The JSON data from which the plan of a checked manifest is read.

    Writes the manifest's `defaults` into each method. Sorts mappings by key, so that a factory gets its `kwargs` in the
    same order, whatever the order in the manifest. The classes of a plan have the other defaults.
    """
    manifest = plugin_sections.normalized(manifest)
    model = manifest.get("model", {})
    adapters = model.get("adapters", {})
    tokenizer, constants = manifest.get("tokenizer", []), manifest.get("constant_methods", {})
    schemas = {name: each["schema"] for name, each in constants.items() if isinstance(each, dict) and "schema" in each}
    plan: dict[str, object] = {
        "schema": PLAN_SCHEMA,
        "name": manifest["name"],
        "model": {
            **model,
            "weights": [_checkpoint(checkpoint) for checkpoint in weights.checkpoints(model).values()],
            "modules": sorted(model.get("modules", [])),
        },
        "methods": {name: _method(name, method, manifest) for name, method in manifest["methods"].items()},
        "recipe": manifest.get("recipe"),
        "constant_methods": {name: value for name, value in constants.items() if name not in schemas},
        "named_data": {
            tag: {**entry, "parameters": sorted(entry["parameters"]), "adapter": tag in adapters}
            for tag, entry in manifest.get("named_data", {}).items()
        },
        "custom_ops": manifest.get("custom_ops", {}),
        "passes": manifest.get("passes", {}),
        "edge_compile": _sorted_operators(manifest.get("edge_compile", {})),
        "executorch": _sorted_operators(
            {key: value for key, value in manifest.get("executorch", {}).items() if key in parts.Executorch._FIELDS}
        ),
        "share_mutable_buffers": manifest.get("share_mutable_buffers", False),
        "report": manifest.get("report", {}),
        "checks": manifest.get("checks", {}),
        **({"tokenizer": tokenizer if isinstance(tokenizer, list) else [tokenizer]} if tokenizer else {}),
        **({"constant_schemas": schemas} if schemas else {}),
        **{key: value for key, value in manifest.items() if key in ("for", "metadata", "runner")},
    }
    return dict(json.loads(canonical_json(plan)))


def _checkpoint(checkpoint: Checkpoint) -> dict[str, object]:
    """A checkpoint with sorted lists of patterns."""
    return {key: sorted(value) if isinstance(value, list) else value for key, value in checkpoint.items()}


def _sorted_operators(options: Mapping[str, object]) -> dict[str, object]:
    """Sorts lists of operators, because ExecuTorch ignores their order."""
    return {key: sorted(set(value)) if isinstance(value, list) else value for key, value in options.items()}


def _method(name: str, method: Method, manifest: Manifest) -> dict[str, object]:
    defaults = manifest.get("defaults", {})
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, dict):
        inherited = inherited.get(name, [])
    planning = manifest.get("executorch", {}).get("memory_planning", {})
    return {
        "program": method.get("program"),
        "entry": method.get("entry", name),
        "adapter": method.get("adapter"),
        **example_inputs.normalized(method),
        "strict": method.get("strict", defaults.get("strict", False)),
        "quantize": None if "program" in method else method.get("quantize", defaults.get("quantize")),
        "partitioners": method.get("partitioners", inherited),
        "memory_planning": {**planning, **method.get("memory_planning", {})},
        "from_recipe": _decided(name, manifest),
        **({"samples": method["samples"]} if "samples" in method else {}),
    }


def _decided(name: str, manifest: Manifest) -> list[str]:
    """The keys of `DECIDES` that the recipe decides for a method. Empty without a recipe."""
    method, defaults = manifest["methods"][name], manifest.get("defaults", {})
    if "recipe" not in manifest or "program" in method:
        return []
    by_method = defaults.get("partitioners")
    inherited = {*defaults} - ({"partitioners"} if isinstance(by_method, dict) and name not in by_method else set())
    return [key for key in DECIDES if key not in method and key not in inherited]
