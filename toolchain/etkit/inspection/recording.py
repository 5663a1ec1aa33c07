"""Records events of ExecuTorch's runtime in calls of a method."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session


def record(files: ProgramFiles, method: str, inputs: Sequence[Any], calls: int, path: Path) -> None:
    """Calls a method in a child process, and writes an ETDump with the events of all calls.

    Args:
        files: The program.
        method: The method.
        inputs: Its inputs, in the order of the program. Each call gets the same.
        calls: The number of calls.
        path: The file to write.

    Raises:
        InputError: The inputs do not fit, or the runtime lacks a backend that the program calls.
        BuildError: The method fails, or the runtime cannot record events.
    """

    def work() -> None:
        with tempfile.TemporaryDirectory() as scratch:
            session = Session(files, Path(scratch), record=True)
            for _ in range(calls):
                session.call(method, inputs)
            session.write_events(method, path)

    child.run({f"running {method}": work})
