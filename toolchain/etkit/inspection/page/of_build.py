"""Makes the page of a build from the files that its steps wrote, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from etbuild.files import json_file
from etbuild.files.writing import Artifact, write
from etbuild.inputs.source_lines import SourceLines
from etbuild.results import LoweringFacts
from etkit import kept_results
from etkit.inspection.page import content, render


def write_page(
    directory: Path,
    name: str,
    lowering: LoweringFacts,
    lines: SourceLines,
    against: Path | None = None,
    results: Path | None = None,
    notes: Sequence[str] = (),
) -> Artifact:
    """Writes `NAME.report.html` beside the report and the index of a build.

    Args:
        directory: The directory with the report and the index, and with the program if there is something to compare.
        name: The name of the program.
        lowering: The facts of the lowering.
        lines: The lines of the sources.
        against: Another program, in the forms that `difference` takes.
        results: The directory of the results of earlier tests; those in `directory` are newer.
        notes: The notes of the comparison.

    Raises:
        InputError: A file is damaged, or the other program is of another kind.
        BuildError: The page cannot be written.
    """
    page = render.render(shown(directory, name, lowering, lines, against, results, notes))
    return write(directory, f"{name}.report.html", "page", page)


def shown(
    directory: Path,
    name: str,
    lowering: LoweringFacts,
    lines: SourceLines,
    against: Path | None = None,
    results: Path | None = None,
    notes: Sequence[str] = (),
) -> content.PageContent:
    """What the page of a build shows. Arguments and errors are those of `write_page`."""
    index_path = directory / f"{name}.index.json"
    index = json_file.read(index_path, json_file.Format("an index", "index"))
    report = json_file.read(directory / f"{name}.report.json", json_file.Format("a report", "report"))
    differing = content.difference(against, directory / f"{name}.pte", index_path) if against is not None else None
    sha256 = next(each["sha256"] for each in index["artifacts"] if each["kind"] == "program")
    found = [kept_results.of_program(place, name, sha256) for place in (directory, results) if place is not None]
    page = content.of_build(report, index, lowering, lines, differing, next(filter(None, found), None))
    return replace(page, notes=[*page.notes, *notes])
