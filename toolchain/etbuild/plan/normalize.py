"""Normalizes a manifest to the JSON data of its plan, with every default filled in."""

from __future__ import annotations

import json
from typing import Any

from etbuild.backends import recipes
from etbuild.files.digests import canonical_json
from etbuild.manifest import adapters, example_inputs, executorch_options, language_model
from etbuild.plan.parts import QUANTIZE_HOOKS

TEST_CHECKS = ("max_error", "min_sqnr", "metric")
"""The checks that `etbuild test` runs. A build does not read them."""
PLAN_SCHEMA = "executorch-plan/v2"


def normalized(manifest: dict[str, Any]) -> dict[str, Any]:
    """The plan of a checked manifest, as JSON data.

    Fills in every default and writes the manifest's `defaults` into each method. Sorts mappings by key, so that a
    factory gets its `kwargs` in the same order whatever order the manifest has.
    """
    manifest = language_model.normalized(manifest)
    model = manifest.get("model", {})
    entry = {"entry": "forward"} if "huggingface" in model else {}
    plan: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "name": manifest["name"],
        "model": {
            "factory": model.get("factory"),
            "huggingface": _huggingface(model.get("huggingface")),
            "kwargs": model.get("kwargs", {}),
            "seed": model.get("seed", 0),
            "weights": _weights(model.get("weights", [])),
            "modules": sorted(model.get("modules", [])),
            **({"dtype": model["dtype"]} if "dtype" in model else {}),
            **({"adapters": adapters.files(manifest)} if model.get("adapters") else {}),
        },
        "methods": {name: _method(name, {**entry, **method}, manifest) for name, method in manifest["methods"].items()},
        "recipe": recipes.normalized(manifest),
        "constant_methods": {
            name: {"kwargs": {}, **value} if isinstance(value, dict) else value
            for name, value in manifest.get("constant_methods", {}).items()
        },
        "named_data": {
            tag: {"parameters": sorted(entry["parameters"]), "shard_size": entry.get("shard_size")}
            for tag, entry in manifest.get("named_data", {}).items()
        }
        | {
            name: {"parameters": [f"*{adapters.OF_LAYER}.{name}.lora_?"], "shard_size": None, "adapter": True}
            for name in model.get("adapters", {})
        },
        "custom_ops": {"libraries": [], "modules": [], **manifest.get("custom_ops", {})},
        **executorch_options.normalized(manifest),
        "report": {"operators": True, "blobs": True, **manifest.get("report", {})},
        "checks": {name: value for name, value in manifest.get("checks", {}).items() if name not in TEST_CHECKS},
        **{key: manifest[key] for key in ("metadata", "runner", "tokenizer") if key in manifest},
    }
    if isinstance(plan.get("tokenizer"), str):
        plan["tokenizer"] = [plan["tokenizer"]]
    return dict(json.loads(canonical_json(plan)))


def _weights(weights: str | dict[str, Any] | list[Any]) -> list[Any]:
    return [_checkpoint(entry) for entry in (weights if isinstance(weights, list) else [weights])]


def _checkpoint(entry: str | dict[str, Any]) -> str | dict[str, Any]:
    """The name of a checkpoint; with its rules, if there are any."""
    if isinstance(entry, str):
        return entry
    rules = {key: sorted(value) if isinstance(value, list) else value for key, value in entry.items() if value}
    return rules if len(rules) > 1 else str(entry["file"])


def _huggingface(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    """The model of transformers. Leaves out what says the same as if it was not there."""
    if wanted is None:
        return None
    cache = wanted.get("cache")
    if cache is not None:
        same = {"kind": "static", "max_seq_length": cache["max_length"]}
        cache = {key: value for key, value in cache.items() if same.get(key) != value}
    config = wanted.get("config", {})
    only_file = isinstance(config, dict) and "file" in config and not config.get("set")
    wanted = {key: value for key, value in wanted.items() if (key, value) != ("logits", "all")}
    return {**wanted, "config": config["file"] if only_file else config, "cache": cache}


def _method(name: str, method: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    defaults = manifest.get("defaults", {})
    inherited = defaults.get("partitioners", [])
    if isinstance(inherited, dict):
        inherited = inherited.get(name, [])
    return {
        "program": method.get("program"),
        "entry": method.get("entry", name),
        **({"adapter": method["adapter"]} if "adapter" in method else {}),
        **example_inputs.normalized(method),
        "strict": method.get("strict", defaults.get("strict", False)),
        "quantize": None if "program" in method else _quantize(method.get("quantize", defaults.get("quantize"))),
        "partitioners": [_partitioner(entry) for entry in method.get("partitioners", inherited)],
        "memory_planning": executorch_options.normalized_memory(manifest, method),
        "from_recipe": recipes.decided(manifest, name),
    }


def _quantize(quantize: dict[str, Any] | None) -> dict[str, Any] | None:
    if quantize is None:
        return None
    pt2e = quantize.get("pt2e")
    return {
        "torchao": [_torchao(entry) for entry in quantize.get("torchao", [])],
        "pt2e": None if pt2e is None else _pt2e(pt2e),
    }


def _torchao(entry: dict[str, Any]) -> dict[str, Any]:
    common = {"modules": ["*"], "layers": ["linear"], **entry}
    if ":" in entry["config"]:
        return {"kwargs": {}, **common}
    return {"group_size": 32 if "4w" in entry["config"] or entry["config"] == "int4" else None, **common}


def _pt2e(pt2e: dict[str, Any]) -> dict[str, Any]:
    calibration = pt2e.get("calibration", "example_inputs" if "quantizers" in pt2e else None)  # None: the recipe's
    batches = {} if calibration == "example_inputs" else calibration
    return {
        "quantizers": [_partitioner(entry) for entry in pt2e.get("quantizers", [])],
        "calibration": {"kwargs": {}, **batches} if batches and "factory" in batches else batches,
        "qat": pt2e.get("qat"),
        "passes": {hook: pt2e.get("passes", {}).get(hook, []) for hook in QUANTIZE_HOOKS},
    }


def _partitioner(entry: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"backend": entry, "options": {}}
    return {"backend": entry["backend"], "options": entry.get("options", {})}
