"""The index of a build: its outputs and its inputs. It contains no path and no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from etbuild.files.digests import digest
from etbuild.files.writing import Artifact
from etbuild.plan.plan import Plan
from etbuild.report.parts import Added
from etbuild.results import ArtifactFacts, Index, KeyInputs, LoweringFacts
from etbuild.version import VERSION


def index(
    plan: Plan, inputs: KeyInputs, lowering: LoweringFacts, reported: list[Artifact], parts: Sequence[Added] = ()
) -> Index:
    """The content of `NAME.index.json`.

    Args:
        plan: The plan.
        inputs: The result of `key.key.describe`.
        lowering: The facts of the lowering.
        reported: The files of the tokenizer, and the report.
        parts: What plug-ins add.
    """
    distributions = inputs["toolchain"]["distributions"]
    made: Index = {
        "schema": "executorch-index/v2",
        "name": plan.name,
        "key": digest(inputs),
        "inputs": inputs,
        "tensors": lowering["tensors"],
        "versions": {
            "etbuild": VERSION,
            **{name: distributions[name]["version"] for name in ("executorch", "torch")},
        },
        "methods": sorted(plan.methods),
        "constant_methods": sorted(lowering["constant_methods"]),
        "template": lowering["template"],
        "artifacts": [*lowering["artifacts"], *(artifact.facts() for artifact in reported)],
        "named_data": _named_data(plan, lowering["artifacts"]),
    }
    if edges := {name: graph["edges"] for name, graph in sorted(lowering["graphs"].items()) if "edges" in graph}:
        made["edges"] = edges
    if lowering["with_weights"]:
        made["with_weights"] = lowering["with_weights"]
    for part in parts:
        made |= cast("Index", {key: part.content[key] for key in part.indexed})
    return made


def _named_data(plan: Plan, artifacts: list[ArtifactFacts]) -> dict[str, str | list[str]]:
    """The digest of each tag's file; for a tag with shards, the list of their digests."""
    digests: dict[str, list[str]] = {}
    for artifact in artifacts:
        if "tag" in artifact:
            digests.setdefault(artifact["tag"], []).append(artifact["sha256"])
    return {tag: listed if tag in plan.sharded_tags else listed[0] for tag, listed in digests.items()}
