"""Notes for users about a program that can be built. Most of them are in the report, too."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from etbuild.errors import Problem
from etbuild.folding import folded

_collected: list[list[str]] = []


def add(note: str) -> None:
    """Adds a note to the notes of the running step. They go into the report, and the build prints them."""
    if _collected and note not in _collected[-1]:
        _collected[-1].append(note)


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collects the notes of code that runs within this context."""
    _collected.append([])
    try:
        yield _collected[-1]
    finally:
        _collected.pop()


def show(notes: Sequence[Problem]) -> None:
    """Prints notes."""
    for note in folded(notes):
        print(f"note: {note}", file=sys.stderr)


def show_of_comparison(result: Path) -> None:
    """Prints the notes in the result of a comparison, which this build or an earlier one has written."""
    said = json.loads(result.read_bytes())["data"].get("message", "")
    show([*map(Problem, said.splitlines())])


def show_of_report(report: Path) -> None:
    """Prints the notes in the report of an earlier build."""
    show([*map(Problem, json.loads(report.read_bytes()).get("notes", ()))])
