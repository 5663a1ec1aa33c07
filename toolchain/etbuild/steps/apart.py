"""Runs code of others in child processes, which end before the build goes on: nothing that it leaves reaches the rest.

Such code may change anything in its process: PyTorch's settings, functions of libraries, how the processor rounds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from etbuild.inputs.undeclared import add_unkeyed, unkeyed
from etbuild.processes import forked
from etbuild.processes.process_state import high_copy

T = TypeVar("T")


def run(
    tasks: Mapping[str, Callable[[], T]], at_once: int, meanwhile: Sequence[Callable[[], object]] = ()
) -> dict[str, T]:
    """Does what `forked.run` does, and takes over what the children have collected with `unkeyed`."""
    found = forked.run({name: _noted(task) for name, task in tasks.items()}, at_once, meanwhile)
    return {name: _taken_over(*each) for name, each in found.items()}


def run_one(task: Callable[[], T], meanwhile: Sequence[Callable[[], object]] = ()) -> T:
    """Runs one task as `run` does. It has the standard input of this process, for a debugger."""
    with _standard_input() as take:

        def in_child() -> T:
            take()
            return task()

        return run({"the build": in_child}, 1, meanwhile)["the build"]


class Beside(Generic[T]):
    """One task in a child process, beside this one, as `forked.Beside` runs it. It has the standard input, too."""

    def __init__(self, name: str, task: Callable[[Callable[[], Any]], T]) -> None:
        with _standard_input() as take:

            def in_child(receive: Callable[[], Any]) -> tuple[T, set[str]]:
                take()
                return _noted(lambda: task(receive))()

            self._child = forked.Beside(name, in_child)

    def result(self, given: object) -> T:
        """Gives something to the task, and returns its result."""
        result, reasons = self._child.result(given)
        found: T = _taken_over(result, reasons)
        return found

    def end(self) -> None:
        """Ends the child, if it still runs."""
        self._child.end()


def _noted(task: Callable[[], T]) -> Callable[[], tuple[T, set[str]]]:
    def in_child() -> tuple[T, set[str]]:
        with unkeyed() as reasons:
            return task(), reasons

    return in_child


def _taken_over(result: T, reasons: set[str]) -> T:
    add_unkeyed(reasons)
    return result


@contextmanager
def _standard_input() -> Iterator[Callable[[], None]]:
    """Yields a function for a child process that starts inside: it takes the standard input of this process, which a
    forked process has lost."""
    stdin = None
    with suppress(OSError):
        stdin = high_copy(0)

    def take() -> None:
        if stdin is not None:
            os.dup2(stdin, 0)
            with suppress(OSError):  # a process that began without standard input may have a directory in its place
                sys.stdin = os.fdopen(0, closefd=False)

    try:
        yield take
    finally:
        if stdin is not None:
            os.close(stdin)
