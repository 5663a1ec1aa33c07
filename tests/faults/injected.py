"""Work in a fork of this process, in which one use of the file system fails, or during which the process is killed.

Python tells an audit hook of each call that touches files, before it is made: so every one of them is a place where a
disk may be full, and between any two of them a process may be killed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

_CALLS = frozenset(
    ["open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.scandir", "os.listdir", "fcntl.flock"]
)
_PYTHON = (".py", ".pyc", ".so")  # what an import reads is no place of ours

Act = Callable[[], None]


def kill() -> None:
    """Ends this process as the kernel does that has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> Act:
    """Makes the call fail with an error of the system."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def install(place: int, act: Act, root: str = "/") -> Callable[[], int]:
    """From now on the call at this place does something else. Returns what counts the calls.

    Args:
        place: The number of the call, from 1.
        act: What it does.
        root: Calls for files elsewhere do not count.
    """
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event in _CALLS and _counts(str(arguments[0]), root):
            seen += 1
            if seen == place:
                act()

    sys.addaudithook(hook)
    return lambda: seen


def _counts(path: str, root: str) -> bool:
    return not path.endswith(_PYTHON) and (not path.startswith("/") or path.startswith(root))


def run(work: Callable[[], object], place: int, act: Act) -> tuple[int, str]:
    """What becomes of the work: the number of calls that it made, or minus a signal; and its error in words."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            seen = install(place, act)
            work()
        except BaseException as error:  # the parent judges it
            said = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
        os.write(writing, f"{seen()} {said}"[:60_000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    number, _, said = text.partition(" ")
    return (code if code else int(number)), said


def places(work: Callable[[], object]) -> Iterator[int]:
    """Every call that the work makes."""
    calls, said = run(work, 0, kill)
    assert said == "", said
    assert calls > 0
    return iter(range(1, calls + 1))


def tree(directory: Path) -> dict[str, bytes]:
    """All files, by their path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
