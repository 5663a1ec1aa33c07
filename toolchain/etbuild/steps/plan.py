"""Planning: a manifest becomes a plan, and a plan for each later step with all that the step may read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etbuild.errors import DocumentPath, Position
from etbuild.manifest import validate
from etbuild.manifest.positions import locating
from etbuild.plan.plan import Plan, from_manifest
from etbuild.plan.positions import positions_to_json

Positions = dict[DocumentPath, Position]


def read(
    manifest: Path, shown: str | None, variant: str | None, settings: Mapping[str, Any]
) -> tuple[Plan, validate.Manifest]:
    """The plan of a manifest, and the manifest.

    Args:
        manifest: The file.
        shown: Its name in messages; None: its path.
        variant: The variant to merge over it; None: none.
        settings: The values of its parameters.

    Raises:
        InputError: The manifest cannot be read, or is wrong.
    """
    loaded = validate.load(manifest, shown, variant, settings)
    with locating(loaded.positions):
        return from_manifest(loaded.data), loaded


def contents(plan: Plan, positions: Positions) -> dict[str, Any]:
    """The files for the later steps, as JSON data, by the option of `etbuild plan` that names each."""
    return {
        "plan": plan.to_json(),
        "export_plan": plan.export_plan.to_json(),
        "lower_plan": plan.lower_plan.to_json(),
        "compare_plan": plan.compare_plan.to_json(),
        "positions": positions_to_json(positions),
    }


def of_method(plan: Plan, name: str) -> Any:
    """The plan for lowering one method by itself, as JSON data."""
    return plan.lower_plan.of_method(name).to_json()
