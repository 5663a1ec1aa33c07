"""Runs other people's code in child processes, so that its changes do not reach the build.

Such code may change anything in its process: PyTorch's settings, functions of libraries, the rounding of the processor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from etbuild.guard.undeclared import add_unkeyed, ending_process, unkeyed
from etbuild.inputs.user_code import errors_of_sources
from etbuild.processes import forked
from etbuild.processes.ending import flush
from etbuild.surroundings.process_state import high_copy, stream_to

T = TypeVar("T")


def run(
    tasks: Mapping[str, Callable[[], T]], at_once: int, meanwhile: Sequence[Callable[[], object]] = ()
) -> dict[str, T]:
    """Does what `forked.run` does, and adds what the children have collected with `unkeyed`."""
    found = forked.run({name: _noted(task) for name, task in tasks.items()}, at_once, meanwhile)
    return {name: _taken_over(*each) for name, each in found.items()}


def run_one(task: Callable[[], T], meanwhile: Sequence[Callable[[], object]] = ()) -> T:
    """Runs one task as `run` does. The task has the standard input of this process, for a debugger."""
    with _standard_input() as take:

        def in_child() -> T:
            take()
            return task()

        return run({"the build": in_child}, 1, meanwhile)["the build"]


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

        self._child = forked.Beside(name, in_child)

    def give(self, value: object) -> None:
        """Starts the next step of the child, with a value."""
        self._child.give(value)

    def result(self) -> Any:
        """The result of the child's step. Errors are those of `forked.Beside.result`."""
        return _taken_over(*self._child.result())

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


def _noted(task: Callable[[], T]) -> Callable[[], tuple[T, set[str]]]:
    def in_child() -> tuple[T, set[str]]:
        with ending_process(), unkeyed() as reasons, errors_of_sources():
            return task(), reasons

    return in_child


def _taken_over(result: T, reasons: set[str]) -> T:
    add_unkeyed(reasons)
    return result


@contextmanager
def _standard_input() -> Iterator[Callable[[], None]]:
    """Yields a function for a child process that starts within this context. The function restores the standard input,
    which a forked process loses."""
    stdin = None
    with suppress(OSError):
        stdin = high_copy(0)

    def take() -> None:
        if stdin is not None:
            os.dup2(stdin, 0)
            with suppress(OSError):  # a process without standard input may have a directory in its place
                sys.stdin = os.fdopen(0, closefd=False)

    try:
        yield take
    finally:
        if stdin is not None:
            os.close(stdin)
