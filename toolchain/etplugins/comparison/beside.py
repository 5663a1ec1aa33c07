"""A child process that makes the model while this one lowers the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etbuild.guard.children import taken_over
from etbuild.guard.reads import ending_process, guard, unkeyed
from etbuild.inputs.user_code import errors_of_sources
from etbuild.processes import forked
from etbuild.processes.ending import flush
from etbuild.surroundings.process_state import stream_to


class Beside:
    """A child process that works beside this one, as `forked.Beside` does. Its code runs elsewhere as well. So its
    output here is hidden, and no debugger stops it."""

    def __init__(self, name: str, task: Callable[[], Generator[Any, Any, Any]]) -> None:
        def in_child() -> Generator[Any, Any, Any]:
            steps, given = task(), None
            sys.breakpointhook = _no_breakpoint
            with ending_process(), _unheard():
                while True:
                    with unkeyed() as reasons, errors_of_sources():
                        try:
                            found = steps.send(given)
                        except StopIteration as end:
                            return end.value, reasons
                    given = yield found, reasons

        guard()
        self._child = forked.Beside(name, in_child)

    def give(self, value: object) -> None:
        """Starts the next step of the child, with a value."""
        self._child.give(value)

    def result(self) -> Any:
        """The result of the child's step. Errors are those of `forked.Beside.result`."""
        return taken_over(*self._child.result())

    def end(self) -> None:
        """Ends the child, if it still runs."""
        self._child.end()


@contextmanager
def _unheard() -> Iterator[None]:
    """Drops printed text."""
    with Path(os.devnull).open("wb") as nowhere, stream_to(1, nowhere.fileno()), stream_to(2, nowhere.fileno()):
        try:
            yield
        finally:
            flush()


def _no_breakpoint(*_: Any, **__: Any) -> None:
    """Takes the place of `breakpoint()`."""
