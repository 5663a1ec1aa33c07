"""Finds what differs between two programs, for the page of the second one."""

from __future__ import annotations

from pathlib import Path

from etkit.analysis import program_diff
from etkit.page.content import Difference


def difference(other: Path, program: Path, index: Path | None) -> Difference:
    """What differs from another program. The other one is a `.pte`, an index, or a directory with one. The index of
    this program is compared if the other is no `.pte`.

    Raises:
        InputError: A file is damaged, or the two are of different kinds.
    """
    compared = program if other.suffix == ".pte" or index is None else index
    differing = program_diff.compare(program_diff.facts(other), program_diff.facts(compared))
    sections = {
        title: [(where, what) for where, what, _ in program_diff.rows(changes)]
        for title, changes in program_diff.by_section(differing).items()
    }
    return Difference(other.name or str(other), sections)
