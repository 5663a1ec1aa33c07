"""Locks of files and directories (flock). The kernel releases a lock when its process ends, even if it is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = os.O_RDWR | os.O_CREAT
"""The flags of a file that is made for its lock."""
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
"""The flags for an existing directory."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)  # EBADF: NFS locks no directories


class NoLocks(OSError):
    """The file system has no locks."""


def acquire(path: Path, kind: int, flags: int) -> int | None:
    """Opens and locks a file or a directory.

    Args:
        path: The path.
        kind: The operation, as for `fcntl.flock`.
        flags: How to open it, as for `os.open`.

    Returns:
        The descriptor, which holds the lock until it is closed. None if another process has removed or replaced the
        file before it was locked.

    Raises:
        NoLocks: The file system has no locks.
        BlockingIOError: Another process has the lock.
        OSError: The file cannot be opened or locked.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, kind)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock(descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise NoLocks(error.errno, f"the file system has no locks ({os.strerror(error.errno)})") from None
        raise


@contextlib.contextmanager
def locked(path: Path, kind: int, flags: int) -> Iterator[None]:
    """Holds a lock. Arguments and errors are those of `acquire`."""
    descriptor = None
    while descriptor is None:
        descriptor = acquire(path, kind, flags)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a file system may have no locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked in between may keep the descriptor
        os.close(descriptor)
