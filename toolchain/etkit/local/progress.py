"""Shows how far a command is: a line for each step on a terminal, and elsewhere a line every ten seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from etbuild.cli.terminal import DIM, GREEN, RED, paint, stage
from etbuild.errors import printable

_SECONDS = 10.0
"""Without a terminal, a line says so often what runs: a log of CI that is silent looks like one that hangs."""
_SHORT, _SHORT_OUTSIDE = 0.05, 1.0
"""Steps that take less time in seconds, such as one from the cache, leave no line; nor do stages outside of steps."""
_OFF = "ETBUILD_NO_PROGRESS"
"""The variable that turns off the lines without a terminal."""


class Steps:
    """Reports the steps of a command to a stream. The stages inside a step are shown only while they run.

    Args:
        stream: The stream to write to. Default: standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self._live, self._inside = self.stream.isatty(), False

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Shows that a step runs, and when it ends, how long it took in seconds."""
        start, self._inside = time.monotonic(), True
        try:
            yield
        finally:
            self._inside = False
        self._ended(name, start, _SHORT)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows that a stage runs. Outside of a step, it is one."""
        start, name = time.monotonic(), printable(name)
        self._line(f"  {name} ...", end="")
        try:
            with stage(name):
                yield
        except BaseException:  # an interrupt ends the stage too; every exception is raised again
            self._line(f"{paint('✗', RED, self.stream)} {name}")
            raise
        if not self._inside:
            self._ended(name, start, _SHORT_OUTSIDE)

    def _ended(self, name: str, start: float, least: float) -> None:
        took = time.monotonic() - start
        if took < least:
            self._line("", end="")
            return
        self._line(f"{paint('✓', GREEN, self.stream)} {printable(name)} {paint(f'{took:.1f} s', DIM, self.stream)}")

    def _line(self, text: str, end: str = "\n") -> None:
        if self._live:
            with suppress(OSError, ValueError):  # a model may have closed the stream for a while
                self.stream.write(f"\r\033[K{text}{end}")
                self.stream.flush()


class Spoken:
    """Says every ten seconds what another process does."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._stage = "start"

    def __call__(self, stage: str | None) -> None:
        """Is called about once a second with the last stage of the process."""
        now, self._stage = time.monotonic(), stage or self._stage
        if now - self._said >= _SECONDS:
            self._said = now
            with suppress(OSError, ValueError):  # nobody may read the stream any more, and the build goes on
                print(f"{now - self._began:.0f} s: {printable(self._stage)}", file=sys.stderr, flush=True)


def speak() -> None:
    """Makes the process that waits for this command say what it does, unless a terminal shows it. Call it before the
    command asks for fixed surroundings."""
    from etbuild.processes import supervisor

    if not sys.stderr.isatty() and not os.environ.get(_OFF) and not supervisor.observers:
        supervisor.observers.append(Spoken())
