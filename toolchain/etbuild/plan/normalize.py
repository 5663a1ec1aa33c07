"""Normalizes a manifest to the JSON data of its plan, with every default filled in."""

from __future__ import annotations

import json

from etbuild.backends import recipes
from etbuild.files.digests import canonical_json
from etbuild.manifest import adapters, example_inputs, executorch_options, language_model
from etbuild.manifest.sections import (
    BackendEntry,
    Calibration,
    Checkpoint,
    Dense,
    HuggingFace,
    Manifest,
    Method,
    Pt2e,
    Quantize,
    Recipe,
    Torchao,
)
from etbuild.plan.parts import QUANTIZE_HOOKS

TEST_CHECKS = ("max_error", "min_sqnr", "metric", "text")
"""The checks that `etbuild test` runs. A build does not read them."""
_DENSE: Dense = {"bias": True, "activation": "Identity", "residual": False}
PLAN_SCHEMA = "executorch-plan/v2"


def normalized(manifest: Manifest) -> dict[str, object]:
    """The plan of a checked manifest, as JSON data.

    Fills in every default and writes the manifest's `defaults` into each method. Sorts mappings by key, so that a
    factory gets its `kwargs` in the same order whatever order the manifest has.
    """
    manifest = language_model.normalized(manifest)
    model = manifest.get("model", {})
    entry: Method = {"entry": "forward"} if "huggingface" in model else {}
    tokenizer = manifest.get("tokenizer", [])
    plan: dict[str, object] = {
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
            **({"adapters": adapters.files(model)} if model.get("adapters") else {}),
        },
        "methods": {name: _method(name, {**entry, **method}, manifest) for name, method in manifest["methods"].items()},
        "recipe": _recipe(manifest),
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
        **({"tokenizer": tokenizer if isinstance(tokenizer, list) else [tokenizer]} if tokenizer else {}),
        **{key: value for key, value in manifest.items() if key in ("metadata", "runner")},
    }
    return dict(json.loads(canonical_json(plan)))


def _weights(weights: str | Checkpoint | list[str | Checkpoint]) -> list[str | dict[str, object]]:
    return [_checkpoint(entry) for entry in (weights if isinstance(weights, list) else [weights])]


def _checkpoint(entry: str | Checkpoint) -> str | dict[str, object]:
    """The name of a checkpoint; with its rules, if there are any."""
    if isinstance(entry, str):
        return entry
    rules = {key: sorted(value) if isinstance(value, list) else value for key, value in entry.items() if value}
    return rules if len(rules) > 1 else entry["file"]


def _huggingface(huggingface: HuggingFace | None) -> dict[str, object] | None:
    """The model of transformers. Leaves out what says the same as if it was not there."""
    if huggingface is None:
        return None
    cache, config = huggingface.get("cache"), huggingface.get("config", {})
    if cache is not None:
        same = [("kind", "static"), ("max_seq_length", cache["max_length"])]
    defaults: tuple[tuple[str, object], ...] = (
        ("logits", "all"),
        ("pooling", "none"),
        ("dense", []),
        ("normalize", False),
    )
    file = config.get("file") if isinstance(config, dict) and not config.get("set") else None
    return {
        **{key: value for key, value in huggingface.items() if (key, value) not in defaults},
        **({"dense": [{**_DENSE, **each} for each in huggingface["dense"]]} if huggingface.get("dense") else {}),
        "config": config if file is None else file,
        "cache": None if cache is None else {key: value for key, value in cache.items() if (key, value) not in same},
    }


def _method(name: str, method: Method, manifest: Manifest) -> dict[str, object]:
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
        "from_recipe": _decided(name, manifest),
    }


def _recipe(manifest: Manifest) -> dict[str, object] | None:
    """The recipe. `said` lists the fields of ExecuTorch's configuration that the manifest sets itself."""
    if "recipe" not in manifest:
        return None
    recipe = manifest["recipe"]
    written: Recipe = {"name": recipe} if isinstance(recipe, str) else recipe
    said = {"edge_compile": {*manifest.get("edge_compile", {})}, "executorch": {*manifest.get("executorch", {})}}
    if any("memory_planning" in method for method in manifest["methods"].values()):
        said["executorch"].add("memory_planning")
    return {"kwargs": {}, **written, "said": {key: sorted(fields) for key, fields in said.items()}}


def _decided(name: str, manifest: Manifest) -> list[str]:
    """What of `recipes.DECIDES` a manifest leaves to its recipe for a method. Empty without a recipe."""
    method, defaults = manifest["methods"][name], manifest.get("defaults", {})
    if "recipe" not in manifest or "program" in method:
        return []
    by_method = defaults.get("partitioners")
    inherited = {*defaults} - ({"partitioners"} if isinstance(by_method, dict) and name not in by_method else set())
    return [key for key in recipes.DECIDES if key not in method and key not in inherited]


def _quantize(quantize: Quantize | None) -> dict[str, object] | None:
    if quantize is None:
        return None
    return {
        "torchao": [_torchao(entry) for entry in quantize.get("torchao", [])],
        "pt2e": _pt2e(quantize["pt2e"]) if "pt2e" in quantize else None,
    }


def _torchao(entry: Torchao) -> Torchao:
    common: Torchao = {"modules": ["*"], "layers": ["linear"], **entry}
    if ":" in entry["config"]:
        return {"kwargs": {}, **common}
    return {"group_size": 32 if "4w" in entry["config"] or entry["config"] == "int4" else None, **common}


def _pt2e(pt2e: Pt2e) -> dict[str, object]:
    calibration = pt2e.get("calibration", "example_inputs" if "quantizers" in pt2e else None)  # None: the recipe's
    batches: Calibration | None = {} if calibration == "example_inputs" else calibration
    return {
        "quantizers": [_partitioner(entry) for entry in pt2e.get("quantizers", [])],
        "calibration": {"kwargs": {}, **batches} if batches and "factory" in batches else batches,
        "qat": pt2e.get("qat"),
        "passes": {hook: pt2e.get("passes", {}).get(hook, []) for hook in QUANTIZE_HOOKS},
    }


def _partitioner(entry: str | BackendEntry) -> BackendEntry:
    return {"backend": entry, "options": {}} if isinstance(entry, str) else {"options": {}, **entry}
