"""What a sandbox would do for a forked process: no undeclared files, no network, and an end when its parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from etbuild.files.scratch import Scratch, temporary

_libc = ctypes.CDLL(None)  # loaded before any fork
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_OUTPUTS = "bazel-out"
_ORPHANS_SECONDS = 0.5


def end_with(parent: int) -> None:
    """This process gets SIGTERM when its parent ends. (Not SIGKILL: it has files to remove and processes to end.)"""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def adopt_orphans() -> None:
    """Processes below this one become its children when their own parents end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans() -> None:
    """Ends the processes that adopted this one as their parent, and those below them. Those that are about to end, such
    as the one that removes what `multiprocessing` shared, have a moment."""
    kill_at = time.monotonic() + _ORPHANS_SECONDS
    # Until there is none any more; or where the kernel does not list them.
    with contextlib.suppress(ChildProcessError, FileNotFoundError):
        while True:
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if ended == 0 and time.monotonic() >= kill_at:
                for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
            if ended == 0:
                time.sleep(0.01)


def leave_network() -> None:
    """This process, which has one thread, sees no network but a loopback of its own, as in Bazel's sandbox.

    Root may simply leave; others do so in a user namespace in which they stay who they are. Where neither is allowed,
    as in some containers, the network stays, and Bazel has no such sandbox either.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNET) != 0:
        if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        with contextlib.suppress(OSError):  # it would then have nobody's number, and still its rights
            for name, content in maps.items():
                Path("/proc/self", name).write_text(content)
    with contextlib.suppress(OSError), socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


MAIN = "main"
"""The directory to run in, below that of a view: `../REPOSITORY` is a path of Bazel's."""


def view(paths: Iterable[str]) -> Scratch:
    """A new directory of links, in whose `MAIN` relative paths find these files and no others of the current directory.

    Outputs are written to Bazel's own directory of outputs, which is therefore there as a whole.

    Raises:
        BuildError: It cannot be made.
        OSError: A link in it cannot be made.
    """
    made = temporary("worker")
    try:
        _link(made.path / MAIN, Path.cwd(), paths)
    except BaseException:
        made.remove()
        raise
    return made


def _link(made: Path, here: Path, paths: Iterable[str]) -> None:
    made.mkdir()
    (made / _OUTPUTS).symlink_to(here / _OUTPUTS)
    for path in sorted(paths):
        if not path.startswith((f"{_OUTPUTS}/", "/")):
            link = made / path
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # it lies in a directory that is an input itself
                link.symlink_to(here / path)
