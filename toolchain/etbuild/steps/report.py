"""Reporting: checks and describes a lowered program, without importing torch."""

from __future__ import annotations

from pathlib import Path

from etbuild import notes
from etbuild.errors import Problem
from etbuild.files.writing import Artifact
from etbuild.inputs.given import Given
from etbuild.inputs.source_lines import NO_LINES, SourceLines
from etbuild.plan.plan import Plan
from etbuild.report import checks
from etbuild.report.index import index
from etbuild.report.parts import Reported, added
from etbuild.report.report import report
from etbuild.results import KeyInputs, LoweringFacts
from etbuild.steps.facts import write_json


def check_and_report(
    plan: Plan,
    described: KeyInputs,
    lowering: LoweringFacts,
    inputs: Given,
    directory: Path,
    lines: SourceLines = NO_LINES,
) -> list[Artifact]:
    """Checks a lowered program, and writes the report and the index. Prints suspicious findings that are no errors.

    Args:
        plan: The plan.
        described: The result of `key.key.describe`.
        lowering: The facts of the lowering.
        inputs: The declared inputs, which contain the tokenizer.
        directory: An existing directory for `NAME.tokenizer`, `NAME.report.json` and `NAME.index.json`.
        lines: The lines of the sources that notes and errors may name. They are in no file.

    Raises:
        InputError: A file of the tokenizer cannot be read.
        CheckError: The program does not pass a check of the manifest, or of a plug-in that adds to the report.
        BuildError: A file of the tokenizer has changed, or a file cannot be written.
    """
    measured = checks.measure(plan, lowering, lines)
    parts = added(Reported(plan, inputs, described["data"], lowering, directory))
    measured += [check for part in parts for check in part.checks]
    problems = [
        *map(Problem, lowering["notes"]),
        *checks.notes(plan, lowering, lines),
        *(note for part in parts for note in part.notes),
    ]
    notes.show(problems)
    said = [problem.message for problem in problems]
    files = [file for part in parts for file in part.files]
    reported = [*files, write_json(directory, plan.name, "report", report(plan, lowering, measured, said, parts))]
    return [*reported, write_json(directory, plan.name, "index", index(plan, described, lowering, reported, parts))]
