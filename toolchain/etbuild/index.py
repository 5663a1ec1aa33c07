"""The index of a build: what was made, and from what. It holds no path and no time."""

from __future__ import annotations

from typing import Any

from etbuild import __version__
from etbuild.files import Artifact
from etbuild.plan import Plan, digest


def index(plan: Plan, inputs: dict[str, Any], artifacts: list[Artifact]) -> dict[str, Any]:
    """The content of `NAME.index.json`.

    Args:
        plan: The plan.
        inputs: What `inputs.describe` says of the build.
        artifacts: All files of the build but the index itself.
    """
    distributions = inputs["toolchain"]["distributions"]
    return {
        "schema": "executorch-index/v1",
        "name": plan["name"],
        "key": digest(inputs),
        "inputs": inputs,
        "versions": {
            "etbuild": __version__,
            **{name: distributions[name]["version"] for name in ("executorch", "torch")},
        },
        "methods": sorted(plan["methods"]),
        "constant_methods": sorted(plan["constant_methods"]),
        "artifacts": [artifact.facts() for artifact in artifacts],
        "named_data": {artifact.tag: artifact.sha256 for artifact in artifacts if artifact.tag is not None},
    }
