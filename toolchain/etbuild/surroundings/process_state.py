"""Undoes changes that user code makes to its process, if the driver's own code continues in the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

_HIGH = 500  # code that closes all descriptors rarely goes this far
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Restores changes of the process that matter to the driver: standard streams, the current directory, the umask,
    signal handlers, and warnings that became errors. If code within this context has forked, the child ends here."""
    process, here, mask = os.getpid(), None, os.umask(0o077)
    os.umask(mask)
    with contextlib.suppress(OSError):  # the directory was removed
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    filters, handlers = list(warnings.filters), {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        with streams_kept():
            yield
    finally:
        if os.getpid() != process:
            os._exit(0)
        with contextlib.suppress(OSError):  # a model may have closed this descriptor
            if here is not None:
                os.fchdir(here)
                os.close(here)
        os.umask(mask)
        for number, handler in handlers.items():
            if signal.getsignal(number) != handler and handler is not None:
                signal.signal(number, handler)
        _drop_errors(filters)


def _drop_errors(before: list[Any]) -> None:
    """Removes filters that turn warnings into errors. A model may use such filters for its own code only."""
    added = [each for each in warnings.filters if each[0] == "error" and each not in before]
    if added:
        warnings.filters[:] = [each for each in warnings.filters if each not in added]  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    """Makes standard output and standard error work after this context, whatever its code does to them."""
    out, err = sys.stdout, sys.stderr
    try:
        with stream_to(1, 1), stream_to(2, 2):
            yield
    finally:
        sys.stdout, sys.stderr = usable(out, 1), usable(err, 2)


def high_copy(descriptor: int) -> int:
    """A copy of a descriptor, with a high number if the process may have such numbers.

    Raises:
        OSError: There are too many open files.
    """
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # `ulimit -n` is lower
            raise
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


@contextlib.contextmanager
def stream_to(stream: int, other: int) -> Iterator[None]:
    """Redirects the descriptor `stream` to the descriptor `other`. Restores `stream` on exit, even if it was
    changed."""
    saved = high_copy(stream)
    os.dup2(other, stream)  # does nothing if both are the same
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # other code may have closed this descriptor
            os.dup2(saved, stream)
            os.close(saved)


def usable(stream: TextIO, descriptor: int) -> TextIO:
    """The stream; if it was closed, a new one for the descriptor."""
    return os.fdopen(descriptor, "w", closefd=False, errors="backslashreplace") if stream.closed else stream
