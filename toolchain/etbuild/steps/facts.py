"""The files with facts that steps write: of a lowering, and the report and the index of a build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import Problem
from etbuild.files import json_file
from etbuild.files.digests import canonical_json
from etbuild.files.writing import Artifact, write
from etbuild.results import LoweringFacts

LOWERING_SCHEMA = "executorch-lowering/v3"


def read_lowering(path: Path) -> LoweringFacts:
    """Reads the facts of a lowering.

    Raises:
        InputError: The file does not contain such facts.
    """
    facts: LoweringFacts = json_file.read(path, json_file.Format("the facts of a lowering", "step#lowering"))
    return facts


def write_json(directory: Path, name: str, kind: str, content: Mapping[str, Any]) -> Artifact:
    """Writes a file of facts. Asserts that it fits its schema, if it has one: otherwise the driver has a bug."""
    wrong: list[Problem] = json_schema.problems(kind, content) if kind in ("index", "report") else []
    assert not wrong, "\n".join(map(str, wrong))
    return write(directory, f"{name}.{kind}.json", kind, canonical_json(content))
