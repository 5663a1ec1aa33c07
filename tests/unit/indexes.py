"""Makes indexes as a build writes them, for tests of their readers."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from etbuild import json_schema
from etbuild.files import digests
from etbuild.plan.plan import from_manifest
from etbuild.results import Index

MANIFEST: dict[str, Any] = {
    "name": "net",
    "model": {"factory": "model:create", "weights": "net.safetensors"},
    "defaults": {"partitioners": ["xnnpack"]},
    "methods": {
        "decode": {"example_inputs": [{"shape": [1, 16], "dtype": "int64"}]},
        "prefill": {"example_inputs": [{"shape": [1, 8], "dtype": "int64"}]},
    },
    "named_data": {"weights": {"parameters": ["*"]}},
    "constant_methods": {"get_max": 8},
}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_index(manifest: Any = MANIFEST, tensors: int = 48, **inputs: Any) -> Index:
    """Returns an index. `inputs` replaces parts of the key's inputs."""
    plan = from_manifest(manifest)
    described: Any = {
        "schema": "executorch-key/v2",
        "plan": plan.to_json(),
        "sources": {"model.py": sha256("model"), "layers/rope.py": sha256("rope")},
        "data": {entry.file: sha256(entry.file) for entry in plan.model.weights},
        "toolchain": {
            "driver": {"version": "0.2.0", "sha256": sha256("driver"), "steps": {"lower": sha256("lower")}},
            "python": "cpython-3.11",
            "distributions": {
                "executorch": {"version": "1.5.1", "sha256": sha256("executorch")},
                "torch": {"version": "2.13.0+cpu", "sha256": sha256("torch")},
            },
        },
        **inputs,
    }
    names = [f"layer{number}.weight" for number in range(tensors)]
    index: Index = {
        "schema": "executorch-index/v2",
        "name": plan.name,
        "key": digests.digest(described),
        "inputs": described,
        "tensors": {file: {name: sha256(name) for name in names} for file in described["data"]},
        "versions": {"etbuild": "0.2.0", "executorch": "1.5.1", "torch": "2.13.0+cpu"},
        "methods": sorted(plan.methods),
        "constant_methods": sorted(plan.constant_methods),
        "template": sha256("template"),
        "artifacts": [
            {"file": "net.pte", "kind": "program", "size": 1000, "sha256": sha256("pte")},
            {"file": "net.weights.ptd", "kind": "named_data", "size": 5000, "sha256": sha256("ptd"), "tag": "weights"},
            {"file": "net.report.json", "kind": "report", "size": 70, "sha256": sha256("report")},
        ],
        "named_data": {"weights": sha256("ptd")},
    }
    assert json_schema.problems("index", index) == []
    return index


def edited(manifest: Mapping[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """Returns a copy with another value at a path."""
    result = copy.deepcopy(dict(manifest))
    target: Any = result
    for part in path[:-1]:
        target = target[part] if isinstance(target, list) else target.setdefault(part, {})
    target[path[-1]] = value
    return result
