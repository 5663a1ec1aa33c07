"""Runs other people's code in child processes, so that its changes do not reach the build.

Such code may change anything in its process: PyTorch's settings, functions of libraries, the rounding of the processor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from etbuild.guard.reads import add_unkeyed, ending_process, guard, unkeyed
from etbuild.inputs.user_code import errors_of_sources
from etbuild.processes import forked
from etbuild.surroundings.process_state import high_copy

T = TypeVar("T")


def run(
    tasks: Mapping[str, Callable[[], T]], at_once: int, meanwhile: Sequence[Callable[[], object]] = ()
) -> dict[str, T]:
    """Does what `forked.run` does, and adds what the children have collected with `unkeyed`."""
    guard()
    found = forked.run({name: _noted(task) for name, task in tasks.items()}, at_once, meanwhile)
    return {name: taken_over(*each) for name, each in found.items()}


def run_one(task: Callable[[], T], meanwhile: Sequence[Callable[[], object]] = ()) -> T:
    """Runs one task as `run` does. The task has the standard input of this process, for a debugger."""
    with _standard_input() as take:

        def in_child() -> T:
            take()
            return task()

        return run({"the build": in_child}, 1, meanwhile)["the build"]


def _noted(task: Callable[[], T]) -> Callable[[], tuple[T, set[str]]]:
    def in_child() -> tuple[T, set[str]]:
        with ending_process(), unkeyed() as reasons, errors_of_sources():
            return task(), reasons

    return in_child


def taken_over(result: T, reasons: set[str]) -> T:
    """The result of a child process. Reads that the child has collected with `unkeyed` count here, too."""
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
