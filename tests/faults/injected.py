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
_USE_BYTES = 256  # all of one length, so that the length of the log counts them
LOG = "uses"
"""How the log of a build is called in the directory of its campaign."""

Act = Callable[[], None]


def kill() -> None:
    """Ends this process as the kernel does that has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> Act:
    """Makes the call fail with an error of the system."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def log(root: str) -> int:
    """The descriptor of the list of uses that all processes of a build have in common."""
    return os.open(Path(root, LOG), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)


def install(place: int, act: Act, log: int, root: str = "/") -> None:
    """From now on the call at this place does something else, in this process or a fork of it.

    Args:
        place: The number of the call, from 1.
        act: What it does.
        log: The descriptor of a file, to which each call is added.
        root: Calls for files elsewhere do not count.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in _CALLS and _counts(str(arguments[0]), root):
            os.write(log, f"{event} {arguments[0]}".encode()[-_USE_BYTES:].ljust(_USE_BYTES))
            if os.lseek(log, 0, os.SEEK_CUR) == place * _USE_BYTES:
                act()

    sys.addaudithook(hook)


def uses(logged: bytes) -> list[str]:
    """What a log says: the calls, each with its file."""
    starts = range(0, len(logged), _USE_BYTES)
    return [logged[start : start + _USE_BYTES].decode(errors="replace").strip() for start in starts]


def _counts(path: str, root: str) -> bool:
    return not path.endswith(_PYTHON) and (not path.startswith("/") or path.startswith(root))


def run(work: Callable[[], object], place: int, act: Act) -> tuple[int, str]:
    """What becomes of the work: the number of calls that it made, or minus a signal; and its error in words."""
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
