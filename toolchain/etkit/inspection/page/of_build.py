"""Makes the page of a build from the files that its steps wrote, without importing torch."""

from __future__ import annotations

from pathlib import Path

from etbuild.files import json_file
from etbuild.files.writing import Artifact, write
from etbuild.inputs.source_lines import SourceLines
from etbuild.results import LoweringFacts
from etkit.inspection.page import content, render


def write_page(
    directory: Path, name: str, lowering: LoweringFacts, lines: SourceLines, against: Path | None = None
) -> Artifact:
    """Writes `NAME.report.html` beside the report and the index of a build.

    Args:
        directory: The directory with the report and the index, and with the program if there is something to compare.
        name: The name of the program.
        lowering: The facts of the lowering.
        lines: The lines of the sources.
        against: Another program, in the forms that `difference` takes.

    Raises:
        InputError: A file is damaged, or the other program is of another kind.
        BuildError: The page cannot be written.
    """
    page = render.render(shown(directory, name, lowering, lines, against))
    return write(directory, f"{name}.report.html", "page", page)


def shown(
    directory: Path, name: str, lowering: LoweringFacts, lines: SourceLines, against: Path | None = None
) -> content.PageContent:
    """What the page of a build shows. Arguments and errors are those of `write_page`."""
    index_path = directory / f"{name}.index.json"
    index = json_file.read(index_path, json_file.Format("an index", "index"))
    report = json_file.read(directory / f"{name}.report.json", json_file.Format("a report", "report"))
    differing = content.difference(against, directory / f"{name}.pte", index_path) if against is not None else None
    return content.of_build(report, index, lowering, lines, differing)
