"""Reporting: what was lowered is checked and described, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import Problem
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json
from etbuild.folding import folded
from etbuild.plan.plan import Plan
from etbuild.report import checks
from etbuild.report.index import index
from etbuild.report.report import report

LOWERING_SCHEMA = "executorch-lowering/v1"


def check_and_report(
    plan: Plan, described: dict[str, Any], lowering: dict[str, Any], directory: Path
) -> list[artifacts.Artifact]:
    """Checks what was lowered, and writes the report and the index. What is no error and suspicious is noted.

    Args:
        plan: The plan.
        described: What `inputs.describe` says of the build.
        lowering: The facts of the lowering.
        directory: An existing directory, where `NAME.report.json` and `NAME.index.json` go.

    Raises:
        CheckError: The program does not pass a check of the manifest.
        BuildError: The program would compute something else than the model, or a file cannot be written.
    """
    measured, notes = checks.measure(plan, lowering), checks.notes(plan, lowering)
    for note in folded([Problem(each) for each in notes]):
        print(f"note: {note}", file=sys.stderr)
    written = write_json(directory, plan.name, "report", report(plan, lowering, measured, notes))
    return [written, write_json(directory, plan.name, "index", index(plan, described, lowering, written))]


def read_lowering(path: Path) -> dict[str, Any]:
    """The facts of a lowering.

    Raises:
        InputError: The file holds none.
    """
    facts: dict[str, Any] = json_file.read(path, "the facts of a lowering", "step#lowering")
    return facts


def write_json(directory: Path, name: str, kind: str, content: dict[str, Any]) -> artifacts.Artifact:
    """Writes a file of facts, once it fits its schema, where it has one. That it might not is a bug of ours."""
    wrong: list[Problem] = json_schema.problems(kind, content) if kind in ("index", "report") else []
    assert not wrong, "\n".join(map(str, wrong))
    return artifacts.write(directory, f"{name}.{kind}.json", kind, lambda file: file.write(canonical_json(content)))
