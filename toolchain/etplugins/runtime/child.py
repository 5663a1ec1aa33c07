"""Runs work with tensors in child processes that are copies of this one. State and crashes stay in the child."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from etbuild.errors import BuildError
from etbuild.processes import forked
from etbuild.surroundings.process_state import stream_to
from etplugins.runtime.native_log import cause


def run(tasks: Mapping[str, Callable[[], Any]], at_once: int = 1) -> dict[str, Any]:
    """Runs each task in its own child process.

    Call it in a process with one thread: call `torch.set_num_threads(1)` before PyTorch computes anything.

    Args:
        tasks: The tasks by a name for messages. A task returns tensors, plain values, or lists, tuples and dicts of
            them.
        at_once: The number of tasks that run at the same time.

    Returns:
        The result of each task, by name.

    Raises:
        EtbuildError: A task raised this error.
        BuildError: A child was killed: the runtime crashed, for example. The hint has what the runtime says about it.
    """
    with tempfile.TemporaryFile() as log:

        def task(work: Callable[[], Any]) -> Callable[[], bytes]:
            def in_child() -> bytes:
                torch.set_num_threads(1)
                content = io.BytesIO()
                with stream_to(1, log.fileno()), stream_to(2, log.fileno()):
                    torch.save(work(), content)
                return content.getvalue()

            return in_child

        try:
            found = forked.run({name: task(work) for name, work in tasks.items()}, at_once)
        except BuildError as error:
            log.seek(0)
            said = cause(log.read())
            problems = [replace(each, hint=each.hint or said) for each in error.problems]
            raise BuildError(problems) from error
    return {name: torch.load(io.BytesIO(content), weights_only=True) for name, content in found.items()}


def result(name: str, work: Callable[[], Any]) -> Any:
    """Runs one task in a child process, and returns its result. Arguments and errors are those of `run`."""
    return run({name: work})[name]
