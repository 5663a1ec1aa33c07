"""Runs work in a fork of this process, and makes one use of the file system fail or kills the process there.

Python calls an audit hook before each call that uses files. So each of these calls can be made to fail, as if the disk
were full, and the process can be killed between any two of them.
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
_PYTHON = (".py", ".pyc", ".so")  # the files that an import reads do not count
_USE_BYTES = 256  # all entries have this length, so that the length of the log gives their number
LOG = "uses"
"""The name of a build's log in the directory of its campaign."""

Act = Callable[[], None]


def kill() -> None:
    """Kills this process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> Act:
    """Returns an action that makes the call fail with a system error."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def log(root: str) -> int:
    """Opens the list of uses that all processes of a build share. Returns its file descriptor."""
    return os.open(Path(root, LOG), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)


def install(place: int, act: Act, log: int, root: str = "/") -> None:
    """Installs a hook that acts at one call that uses files, in this process or a fork of it.

    Args:
        place: The number of the call, from 1.
        act: Called before that call.
        log: The descriptor of a file to which each call is appended.
        root: Calls for files outside of this directory do not count.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in _CALLS and _counts(str(arguments[0]), root):
            os.write(log, f"{event} {arguments[0]}".encode()[-_USE_BYTES:].ljust(_USE_BYTES))
            if os.lseek(log, 0, os.SEEK_CUR) == place * _USE_BYTES:
                act()

    sys.addaudithook(hook)


def uses(logged: bytes) -> list[str]:
    """Reads a log. Returns the calls, each with its file."""
    starts = range(0, len(logged), _USE_BYTES)
    return [logged[start : start + _USE_BYTES].decode(errors="replace").strip() for start in starts]


def _counts(path: str, root: str) -> bool:
    return not path.endswith(_PYTHON) and (not path.startswith("/") or path.startswith(root))


def run(work: Callable[[], object], place: int, act: Act) -> tuple[int, str]:
    """Runs the work in a fork. Returns the number of calls that it made or the negative number of a signal, and the
    text of its error."""
    reading, writing = os.pipe()
    log = os.memfd_create("uses")
    child = os.fork()
    if child == 0:
        said = ""
        try:
            install(place, act, log)
            work()
        except BaseException as error:  # the parent judges it
            said = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
        os.write(writing, said[:60_000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(log, "rb") as file:
        calls = file.seek(0, os.SEEK_END) // _USE_BYTES
    return code or calls, said


def places(work: Callable[[], object]) -> Iterator[int]:
    """Returns the number of each call that the work makes."""
    calls, said = run(work, 0, kill)
    assert said == "", said
    assert calls > 0
    return iter(range(1, calls + 1))


def tree(directory: Path) -> dict[str, bytes]:
    """Returns the contents of all files by path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
