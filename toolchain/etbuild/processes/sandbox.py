"""Isolates a forked process like a sandbox: it has no undeclared files and no network, and ends with its parent."""

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
_CHILDREN = Path("/proc/thread-self/children")  # of the main thread, which adopts orphans


def end_with(parent: int) -> None:
    """Sends this process SIGTERM when its parent ends. (SIGKILL would leave files and processes behind.)"""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent has ended already
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of all processes below it whose own parents end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(others: Collection[int] = (), seconds: float = _ORPHANS_SECONDS) -> None:
    """Ends the processes that this process has adopted, and their descendants.

    Args:
        others: The children of this process that continue.
        seconds: The time for processes that end by themselves, such as the one for shared memory of `multiprocessing`.
    """
    kill_at = time.monotonic() + seconds
    # FileNotFoundError: the kernel does not list children.
    with contextlib.suppress(ChildProcessError, FileNotFoundError):
        while orphans := {*map(int, _CHILDREN.read_text().split())}.difference(others):
            for orphan in orphans:
                if os.waitpid(orphan, os.WNOHANG)[0] == 0 and time.monotonic() >= kill_at:
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(0.01)


def leave_network() -> bool:
    """Disconnects this process from the network, as Bazel's sandbox does. Only a loopback device remains.

    The process must have one thread. Root can leave the network directly. Other users do it in a user namespace in
    which they keep their identity. If neither is allowed, as in some containers, the network stays, as for Bazel there.

    Returns:
        Whether the process has left the network.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNET) != 0:
        if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return False
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        with contextlib.suppress(OSError):  # without the maps, its number is that of `nobody`, but it keeps its rights
            for name, content in maps.items():
                Path("/proc/self", name).write_text(content)
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
    return True


MAIN = "main"
"""The working directory in a view. It is below the view, because Bazel has paths such as `../REPOSITORY`."""


def view(paths: Iterable[str]) -> Scratch:
    """A new directory of links. In its `MAIN`, relative paths find only these files of the current directory.

    Bazel's whole output directory is linked, because outputs are written there.

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
