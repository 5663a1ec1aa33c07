"""Files whose content others made: opened without waiting, read up to a limit, and never beside their directory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open for reading. A pipe that no one writes to, or a device, would never end.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a name with a null character, or with half of a surrogate pair
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read(path: Path, limit: int) -> bytes:
    """The content of a regular file.

    Args:
        path: The file.
        limit: How many bytes it may have.

    Raises:
        OSError: It cannot be read, is something else, or is larger.
    """
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


def beside(path: Path, name: str) -> Path | None:
    """The file that another file names, in the directory of that one or below; None where the name leads elsewhere.

    A build system may put links in place of both, so that it is the real places that count.
    """
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or name.startswith("/") or ".." in parts:
        return None
    try:
        directory = path.resolve(strict=True).parent
        found = (directory / name).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there, or links in a circle
        return None
    return found if found.is_relative_to(directory) else None
