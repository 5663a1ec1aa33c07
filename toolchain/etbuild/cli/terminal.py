"""Shows stages with their times, and errors, on the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

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
    for problem in folded(error.problems):
        head, _, hint = str(problem).partition("\n")
        mark = paint("error:", RED + BOLD, sys.stderr)
        print(f"{mark} {head}" + (f"\n{hint}" if hint else ""), file=sys.stderr)
    count = len(error.problems)
    if count > 1:
        print(f"{count} errors", file=sys.stderr)


class Progress:
    """Reports stages to a stream.

    Args:
        stream: The stream to write to. Default: standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows that a stage is running, and when it ends, how long it took in seconds."""
        from etbuild.processes.build_status import in_stage
        from etbuild.surroundings.process_state import undone

        start, name = time.monotonic(), printable(name)
        self._line(f"  {name} ...", end="")
        try:
            with in_stage(name), undone():
                yield
        except BaseException:  # an interrupt ends the stage too; every exception is raised again
            self._line(f"{paint('✗', RED, self.stream)} {name}")
            raise
        self._line(
            f"{paint('✓', GREEN, self.stream)} {name} {paint(f'{time.monotonic() - start:.1f} s', DIM, self.stream)}"
        )

    def _line(self, text: str, end: str = "\n") -> None:
        if self.live:
            with suppress(OSError, ValueError):  # a model may have closed the stream for a while
                self.stream.write(f"\r\033[K{text}{end}")
                self.stream.flush()
