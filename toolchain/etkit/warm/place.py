"""Where a warm process listens: a socket in a directory of the user's own, named by the identity of the process.

Two processes have the same identity if a build cannot tell which of them it was forked from: the same user with the
same rights and limits, the same namespaces, interpreter and packages, and the same variables.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from etbuild import plugins

SUFFIX = ".socket"
LOCK = ".lock"
"""The end of the file that a warm process locks. While the process begins, the file has its number."""
SERVE = "--warm-server="
"""The argument of the driver that begins a warm process. The socket follows."""
PARENT = "ETBUILD_SERVER_DIR"
_OF_TERMINALS = {"TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
_OF_ONE_BUILD = {"ETBUILD_DROPPED_VARIABLES", "PWD", "OLDPWD"}
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user")
_RIGHTS = ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")
_LONGEST_PATH = 100  # the kernel takes 107 bytes for the path of a socket


def directory() -> Path | None:
    """The directory of this user's sockets, which it makes. None if another user could reach what is in it."""
    # Not where variables say, except in tests: all warm processes of a user must find each other.
    session = Path(f"/run/user/{os.geteuid()}")
    parent = os.environ.get(PARENT) or (session if session.is_dir() else "/tmp")
    found = Path(parent, f"etbuild-{os.geteuid()}")
    try:
        found.mkdir(mode=0o700, exist_ok=True)
        state = found.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not stat.S_IMODE(state.st_mode) & 0o077
    return found if private and len(str(found)) < _LONGEST_PATH - 32 else None


def socket_of(environment: Mapping[str, str]) -> Path | None:
    """The socket of a process that can build in an environment; it may not be there. None: there can be none.

    Args:
        environment: The variables of the build.
    """
    found = directory()
    with contextlib.suppress(OSError):  # without `/proc`, nobody can tell processes apart
        return found and found / f"{_identity(environment)}{SUFFIX}"
    return None


def sockets() -> list[Path]:
    """The sockets of all warm processes of this user, from the oldest on, also of those that were killed."""
    found = directory()
    times = {}
    for path in found.glob(f"*{SUFFIX}") if found else ():
        with contextlib.suppress(FileNotFoundError):  # its process has just ended
            times[path] = path.lstat().st_mtime
    return sorted(times, key=times.__getitem__)


def beginning() -> dict[Path, int]:
    """The numbers of the warm processes of this user that do not listen yet, by their sockets."""
    found = directory()
    processes = {}
    for lock in found.glob(f"*{LOCK}") if found else ():
        path = lock.with_suffix(SUFFIX)
        with contextlib.suppress(OSError, ValueError):  # it has just ended, or listens
            process = int(lock.read_text())
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if f"{SERVE}{path}".encode() in command:  # after a kill, another process may get its number
                processes[path] = process
    return processes


def _identity(environment: Mapping[str, str]) -> str:
    """What builds can tell apart, as a short digest."""
    of_builds = {name: value for name, value in environment.items() if name not in _OF_TERMINALS | _OF_ONE_BUILD}
    facts = [
        sys.version,
        sys.executable,
        sys.prefix,
        str(plugins.ROOT),
        sorted(of_builds.items()),
        [_inode(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        _inode("/"),
        [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_RIGHTS)],
        Path("/proc/self/cgroup").read_text(),
        _umask(),
        [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        os.getpriority(os.PRIO_PROCESS, 0),
        sorted(os.sched_getaffinity(0)),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _inode(path: str) -> list[int]:
    state = os.stat(path)  # noqa: PTH116 - follows the link of a namespace
    return [state.st_dev, state.st_ino]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
