"""Keeps what libraries and models say out of results, and what is said to other developers out of diagnostics."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

_libc = ctypes.CDLL(None)
_HIGH = 500  # code that closes descriptors from 3 on seldom goes so far


@contextlib.contextmanager
def library_messages_off(sources: Iterable[str] = ()) -> Iterator[None]:
    """Hides warnings, those of the named sources excepted, and log records.

    Args:
        sources: Import paths of the user's own sources, such as `models/net.py`.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)  # what ends a build is raised as well
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sources:
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            warnings.filterwarnings("default", module=re.escape(module) + r"\Z")
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def shown_if_it_fails() -> Iterator[None]:
    """Keeps back what Python prints inside; an exception shows it on standard error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    except BaseException:
        sys.stderr.write(said.getvalue())
        raise


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """Sends to standard error what is printed inside, by Python or native code: standard output is for results."""
    sys.stdout.flush()
    lent = _Lent(sys.stderr, 2)
    with streams_kept(), _stream_to(1, 2):
        sys.stdout = sys.stderr = lent
        try:
            yield
        finally:
            _libc.fflush(None)  # what C has kept back is no result either


@contextlib.contextmanager
def streams_kept() -> Iterator[None]:
    """Standard output and standard error are there afterwards, whatever code inside does to them."""
    out, err = sys.stdout, sys.stderr
    try:
        with _stream_to(1, 1), _stream_to(2, 2):
            yield
    finally:
        sys.stdout, sys.stderr = _usable(out, 1), _usable(err, 2)


class _Lent(io.TextIOBase):
    """A stream over another one, which stays open when this one is closed."""

    def __init__(self, stream: TextIO, descriptor: int) -> None:
        self._stream = stream
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        return self._open().write(text)

    def flush(self) -> None:
        self._open().flush()

    def close(self) -> None:
        self.flush()

    def _open(self) -> TextIO:
        self._stream = _usable(self._stream, self._descriptor)
        return self._stream

    def __getattribute__(self, name: str) -> Any:
        if name in ("buffer", "encoding", "errors", "fileno", "isatty", "newlines"):
            return getattr(object.__getattribute__(self, "_open")(), name)
        return object.__getattribute__(self, name)


def _usable(stream: TextIO, descriptor: int) -> TextIO:
    """The stream, or a new one where it was closed."""
    return os.fdopen(descriptor, "w", closefd=False, errors="backslashreplace") if stream.closed else stream


@contextlib.contextmanager
def native_messages_off() -> Iterator[None]:
    """Hides what native code writes to standard error: for an import, whose errors are exceptions."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nowhere, _stream_to(2, nowhere.fileno()):
        yield


@contextlib.contextmanager
def _stream_to(stream: int, other: int) -> Iterator[None]:
    saved = fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.dup2(other, stream)  # nothing, if they are the same
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # code inside has closed what is not its own
            os.dup2(saved, stream)
            os.close(saved)
