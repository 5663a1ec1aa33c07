"""What plug-ins add to a report: files beside it, notes, and keys of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from etbuild import plugins
from etbuild.errors import Problem
from etbuild.files.writing import Artifact
from etbuild.inputs.given import Given
from etbuild.plan.plan import Plan
from etbuild.results import CheckResult, LoweringFacts


@dataclass(frozen=True)
class Reported:
    """A program to report.

    Attributes:
        plan: The plan.
        inputs: The declared inputs, which contain the tokenizer.
        digests: The digests of the data in the key of the program, by name.
        lowering: The facts of the lowering.
        directory: An existing directory for files beside the report.
    """

    plan: Plan
    inputs: Given
    digests: Mapping[str, str]
    lowering: LoweringFacts
    directory: Path


@dataclass(frozen=True)
class Added:
    """What a plug-in adds.

    Attributes:
        files: Files beside the report, which it has written.
        notes: Notes to print.
        content: Keys of the report.
        indexed: Those of these keys that the index has too.
        checks: What was measured for checks of the manifest, which all hold.
    """

    files: Sequence[Artifact] = ()
    notes: Sequence[Problem] = ()
    content: Mapping[str, object] = field(default_factory=dict)
    indexed: tuple[str, ...] = ()
    checks: Sequence[CheckResult] = ()


class Part(Protocol):
    """What a plug-in provides."""

    def __call__(self, program: Reported) -> Added:
        """Checks a part of a program, and describes it. Imports no torch."""


def added(program: Reported) -> list[Added]:
    """What plug-ins add to the report of a program. Errors are theirs."""
    parts: list[Part] = [plugins.load("report_part", name) for name in program.plan.report_parts]
    return [part(program) for part in parts]
