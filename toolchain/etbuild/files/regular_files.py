"""Reads files from other people: opens them without waiting, limits their size, and stays inside their directory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath


class NotRegular(OSError):
    """A directory, a device or the like is in the place of a regular file."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a regular file for reading. Refuses devices and pipes, which may never end.

    Raises:
        NotRegular: It is not a regular file.
        OSError: The file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # the name has a null character, or half of a surrogate pair
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read(path: Path, limit: int) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: The maximum size in bytes.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is larger than the limit.
    """
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


def beside(path: Path, name: str) -> Path | None:
    """Finds a file by its name in another file, inside the directory of the other file.

    A build system may put links in place of both, so the comparison uses their real paths.

    Args:
        path: The file that contains the name.
        name: The name, relative to the directory of `path`.

    Returns:
        The real path; None if there is no such file, or if it is outside the directory.
    """
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or name.startswith("/") or ".." in parts:
        return None
    try:
        directory = path.resolve(strict=True).parent
        file = (directory / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # it is missing, or links form a circle
        return None
    return file if file.is_relative_to(directory) else None
