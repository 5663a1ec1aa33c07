"""Keeps what libraries and models say out of results, and what is said to other developers out of diagnostics."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from etbuild.processes.process_state import stream_to, streams_kept, usable


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
    import ctypes

    sys.stdout.flush()
    lent = _Lent(sys.stderr, 2)
    with streams_kept(), stream_to(1, 2):
        sys.stdout = sys.stderr = lent
        try:
            yield
        finally:
            ctypes.CDLL(None).fflush(None)  # what C has kept back is no result either


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
        self._stream = usable(self._stream, self._descriptor)
        return self._stream

    def __getattribute__(self, name: str) -> Any:
        if name in ("buffer", "encoding", "errors", "fileno", "isatty", "newlines"):
            return getattr(object.__getattribute__(self, "_open")(), name)
        return object.__getattribute__(self, name)


@contextlib.contextmanager
def native_messages_off() -> Iterator[None]:
    """Hides what native code writes to standard error: for an import, whose errors are exceptions."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nowhere, stream_to(2, nowhere.fileno()):
        yield
