"""Runs code of others in child processes, which end before the build goes on: nothing that it leaves reaches the rest.

Such code may change anything in its process: PyTorch's settings, functions of libraries, how the processor rounds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from etbuild.inputs.undeclared import add_unkeyed, unkeyed
from etbuild.processes import forked
from etbuild.processes.process_state import high_copy

T = TypeVar("T")


def run(
    tasks: Mapping[str, Callable[[], T]], at_once: int, meanwhile: Sequence[Callable[[], object]] = ()
) -> dict[str, T]:
    """Does what `forked.run` does, and takes over what the children have collected with `unkeyed`."""

    def noted(task: Callable[[], T]) -> Callable[[], tuple[T, set[str]]]:
        def in_child() -> tuple[T, set[str]]:
            with unkeyed() as reasons:
                return task(), reasons

        return in_child

    found = forked.run({name: noted(task) for name, task in tasks.items()}, at_once, meanwhile)
    for _, reasons in found.values():
        add_unkeyed(reasons)
    return {name: result for name, (result, _) in found.items()}


def run_one(task: Callable[[], T], meanwhile: Sequence[Callable[[], object]] = ()) -> T:
    """Runs one task as `run` does. It has the standard input of this process, for a debugger."""
    stdin = None
    with suppress(OSError):
        stdin = high_copy(0)

    def with_stdin() -> T:
        if stdin is not None:  # a forked process has lost it
            os.dup2(stdin, 0)
            with suppress(OSError):  # a process that began without standard input may have a directory in its place
                sys.stdin = os.fdopen(0, closefd=False)
        return task()

    try:
        return run({"the build": with_stdin}, 1, meanwhile)["the build"]
    finally:
        if stdin is not None:
            os.close(stdin)
