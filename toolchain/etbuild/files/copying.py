"""Work on large files: copies by the kernel, and several processors at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

_BLOCK = 1 << 20
_MOST_THREADS = 8
_OTHER_WAY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
"""The errors of a kernel or a file system that cannot copy between these files."""


def copy_part(source: BinaryIO, target: BinaryIO, offset: int, size: int) -> None:
    """Copies a part of an open file to the place of another one. The kernel copies if it can: then the file system may
    let both files share blocks, and no process has the content in memory.

    Raises:
        OSError: The source cannot be read or ends too early, or the target cannot be written.
    """
    target.flush()
    end, kernel = offset + size, hasattr(os, "copy_file_range")
    while offset < end:
        try:
            copied = os.copy_file_range(source.fileno(), target.fileno(), end - offset, offset) if kernel else -1
        except OSError as error:
            if error.errno not in _OTHER_WAY:
                raise
            copied = -1
        if copied <= 0:  # some file systems say 0 for files that the kernel makes
            kernel = False
            copied = target.write(os.pread(source.fileno(), min(_BLOCK, end - offset), offset))
            target.flush()
            if not copied:
                raise OSError(errno.EIO, "a file ends too early")
        offset += copied


def at_once(work: Sequence[Callable[[], Any]], threads: int | None = None) -> list[Any]:
    """Calls functions in threads, and returns their results. This helps if they wait for the disk, or compute in C.

    The threads have ended when it returns, because a process with other threads must not fork.

    Args:
        work: The functions.
        threads: The number of threads; None: one for each processor, but not many.
    """
    from concurrent.futures import ThreadPoolExecutor  # other steps need not import it

    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        return [*pool.map(lambda each: each(), work)]
