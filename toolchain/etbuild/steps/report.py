"""Reporting: checks and describes a lowered program, without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etbuild import json_schema
from etbuild.errors import Problem
from etbuild.files import artifacts, json_file
from etbuild.files.digests import canonical_json
from etbuild.folding import folded
from etbuild.inputs.declared import Inputs
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.plan.plan import Plan
from etbuild.report import checks, tokenizer
from etbuild.report.index import index
from etbuild.report.report import report
from etbuild.results import KeyInputs, LoweringFacts

LOWERING_SCHEMA = "executorch-lowering/v2"


def check_and_report(
    plan: Plan,
    described: KeyInputs,
    lowering: LoweringFacts,
    inputs: Inputs,
    directory: Path,
    lines: SourceLines = NO_LINES,
) -> list[artifacts.Artifact]:
    """Checks a lowered program, copies its tokenizer, and writes the report and the index. Prints a note about each
    suspicious finding.

    A suspicious finding that the manifest forbids is an error and not a note.

    Args:
        plan: The plan.
        described: The result of `inputs.key.describe`.
        lowering: The facts of the lowering.
        inputs: The declared inputs, which contain the tokenizer.
        directory: An existing directory for `NAME.tokenizer`, `NAME.report.json` and `NAME.index.json`.
        lines: The lines of the sources that notes and errors may name. No file gets them.

    Raises:
        InputError: A file of the tokenizer cannot be read.
        CheckError: The program does not pass a check of the manifest.
        BuildError: A file of the tokenizer has changed, or a file cannot be written.
    """
    measured = checks.measure(plan, lowering, lines)
    copies, noted = tokenizer.copy(plan, inputs, described["data"], lowering, directory)
    problems = [*checks.notes(plan, lowering, lines), *map(Problem, noted)]
    for note in folded(problems):
        print(f"note: {note}", file=sys.stderr)
    notes = [problem.message for problem in problems]
    reported = [*copies, write_json(directory, plan.name, "report", report(plan, lowering, measured, notes))]
    return [*reported, write_json(directory, plan.name, "index", index(plan, described, lowering, reported))]


def read_lowering(path: Path) -> LoweringFacts:
    """Reads the facts of a lowering.

    Raises:
        InputError: The file does not contain such facts.
    """
    facts: LoweringFacts = json_file.read(path, json_file.Format("the facts of a lowering", "step#lowering"))
    return facts


def write_json(directory: Path, name: str, kind: str, content: Mapping[str, Any]) -> artifacts.Artifact:
    """Writes a file of facts. Asserts first that it fits its schema, if it has one: otherwise the driver has a bug."""
    wrong: list[Problem] = json_schema.problems(kind, content) if kind in ("index", "report") else []
    assert not wrong, "\n".join(map(str, wrong))
    return artifacts.write(directory, f"{name}.{kind}.json", kind, canonical_json(content))
