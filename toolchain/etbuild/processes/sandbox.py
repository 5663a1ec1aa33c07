"""Isolates a forked process as a sandbox would: no undeclared files, no network, and an end when its parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from etbuild.files.scratch import Scratch, temporary

_libc = ctypes.CDLL(None)  # loaded before any fork
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_OUTPUTS = "bazel-out"
_ORPHANS_SECONDS = 0.5
_CHILDREN = Path("/proc/thread-self/children")  # of the main thread, which adopts


def end_with(parent: int) -> None:
    """Sends this process SIGTERM when its parent ends. (Not SIGKILL: it has files to remove and processes to end.)"""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of all processes below it whose own parents end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(others: Collection[int] = (), seconds: float = _ORPHANS_SECONDS) -> None:
    """Ends the processes whose parent this process has become, and those below them.

    Args:
        others: The children of this process that go on.
        seconds: The time for processes that are about to end, such as the one that removes shared memory of
            `multiprocessing`.
    """
    kill_at = time.monotonic() + seconds
    # The second error: the kernel does not list children.
    with contextlib.suppress(ChildProcessError, FileNotFoundError):
        while orphans := {*map(int, _CHILDREN.read_text().split())}.difference(others):
            for orphan in orphans:
                if os.waitpid(orphan, os.WNOHANG)[0] == 0 and time.monotonic() >= kill_at:
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.01)


def leave_network() -> bool:
    """Takes this process out of the network, as Bazel's sandbox does. Only a loopback device is left.

    The process must have one thread. Root can leave the network directly. Other users do it in a user namespace in
    which they keep their identity. If neither is allowed, as in some containers, the network stays; Bazel has no such
    sandbox there either.

    Returns:
        Whether it has left.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNET) != 0:
        if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return False
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        with contextlib.suppress(OSError):  # without the maps it is `nobody` by number, and keeps its rights
            for name, content in maps.items():
                Path("/proc/self", name).write_text(content)
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    return True


MAIN = "main"
"""The directory of a view to run in. It is below the view, because Bazel has paths such as `../REPOSITORY`."""


def view(paths: Iterable[str]) -> Scratch:
    """A new directory of links. In its `MAIN`, relative paths find only these files of the current directory.

    It links Bazel's whole output directory, because outputs are written there.

    Args:
        paths: The files, relative to the current directory.

    Raises:
        BuildError: The directory cannot be made.
        OSError: A link in it cannot be made.
    """
    root = temporary("worker")
    try:
        _link(root.path / MAIN, Path.cwd(), paths)
    except BaseException:
        root.remove()
        raise
    return root


def _link(made: Path, here: Path, paths: Iterable[str]) -> None:
    made.mkdir()
    (made / _OUTPUTS).symlink_to(here / _OUTPUTS)
    for path in sorted(paths):
        if not path.startswith((f"{_OUTPUTS}/", "/")):
            link = made / path
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # a directory that contains it is also an input
                link.symlink_to(here / path)
