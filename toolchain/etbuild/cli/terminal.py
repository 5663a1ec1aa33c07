"""Shows errors on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from etbuild import plugins
from etbuild.errors import EtbuildError, printable
from etbuild.folding import folded

GREEN, RED, DIM, BOLD, RESET = "\033[32m", "\033[31m", "\033[2m", "\033[1m", "\033[0m"


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Returns the text in a colour if the stream is a terminal and colours are not turned off, else unchanged."""
    if stream.closed or not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"{colour}{text}{RESET}"


def print_error(error: EtbuildError) -> None:
    """Prints the problems of an error to standard error. Many problems of one kind are folded."""
    problems = error.problems
    if "printed" in plugins.group("advice"):  # actions of build rules have none
        problems = plugins.load("advice", "printed")(problems)
    for problem in folded(problems):
        head, _, hint = str(problem).partition("\n")
        mark = paint("error:", RED + BOLD, sys.stderr)
        print(f"{mark} {head}" + (f"\n{hint}" if hint else ""), file=sys.stderr)
    count = len(error.problems)
    if count > 1:
        print(f"{count} errors", file=sys.stderr)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """A stage of a step that shows nothing: errors name it, and what it does to this process is undone."""
    from etbuild.processes.build_status import in_stage
    from etbuild.surroundings.process_state import undone

    with in_stage(printable(name)), undone():
        yield
