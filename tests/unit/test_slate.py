"""The status that a process reports to the process that watches it."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path

from etbuild.processes.build_status import Slate, in_stage, work


def code_of(run: Callable[[], int], end: Callable[[], None] = lambda: None) -> int | None:
    """Runs a function in a fork of this process, and returns the exit code that the fork reports."""
    slate = Slate.new()
    child = os.fork()
    if child == 0:
        atexit._clear()  # what other tests have registered belongs to this process's parent
        work(slate, run, end)
    _, status = os.waitpid(child, 0)
    code = slate.code(child)
    assert code is None or code == os.waitstatus_to_exitcode(status)
    slate.close()
    return code


def test_a_parser_that_exits(tmp_path: Path) -> None:
    assert code_of(lambda: sys.exit(2), (tmp_path / "ended").touch) == 2
    assert (tmp_path / "ended").exists()


def test_a_model_that_closes_what_is_not_its_own(tmp_path: Path) -> None:
    def run() -> int:
        os.closerange(3, 256)
        opened = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(64)]
        with in_stage("exporting"):
            pass
        assert not any(os.fstat(descriptor).st_size for descriptor in opened)
        return 7

    assert code_of(run) == 7
    assert not any(file.stat().st_size for file in tmp_path.iterdir())
