"""Keeps output of libraries and models out of results, and warnings for other developers out of messages."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from etbuild.patching import replaced
from etbuild.surroundings.process_state import stream_to, streams_kept, usable


@contextlib.contextmanager
def library_messages_off(sources: Iterable[str] = ()) -> Iterator[None]:
    """Hides log records, and warnings except those of the given sources.

    Does not hide those of threads that run already: they are threads of the user's program.

    Args:
        sources: Import paths of the user's own sources, such as `models/net.py`.
    """
    _hidden.begin(sources)
    try:
        yield
    finally:
        _hidden.end()


class _Hidden:
    """Settings of the whole process that hide messages of some threads. Uses may overlap: the first one to begin makes
    the settings, and the last one to end removes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: Counter[int] = Counter()  # by the identifier of a thread
        self._others: set[threading.Thread] = set()  # no identifiers, because later threads get them again
        self._settings = contextlib.ExitStack()

    def begin(self, sources: Iterable[str]) -> None:
        with self._lock:
            if not self._uses:
                self._others = {*threading.enumerate()}
                self._settings.enter_context(replaced(logging.Handler, "handle", self._handle(logging.Handler.handle)))
                self._settings.enter_context(warnings.catch_warnings())
                self._filter("ignore", None)
            self._uses[threading.get_ident()] += 1
            for name in sources:
                module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self._filter("default", re.compile(re.escape(module) + r"\Z"))

    def end(self) -> None:
        with self._lock:
            self._uses[threading.get_ident()] -= 1
            self._uses = +self._uses  # drops zeros
            if not self._uses:
                self._settings.close()

    def match(self, _: object) -> bool:
        """Whether the messages of this thread are hidden. `warnings` calls this on its filters, with the text."""
        return threading.get_ident() in self._uses or threading.current_thread() not in self._others

    def _filter(self, action: str, module: re.Pattern[str] | None) -> None:
        warnings.filters.insert(0, (action, self, Warning, module, 0))  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    def _handle(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def handle(handler: logging.Handler, record: logging.LogRecord) -> Any:
            hidden = record.levelno <= logging.ERROR and self.match(record)  # errors that end a build are also raised
            return False if hidden else original(handler, record)

        return handle


_hidden = _Hidden()


@contextlib.contextmanager
def shown_if_it_fails() -> Iterator[None]:
    """Hides Python's output within this context. After an exception, prints the output to standard error."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield
    except BaseException:
        sys.stderr.write(output.getvalue())
        raise


@contextlib.contextmanager
def stdout_for_results() -> Iterator[None]:
    """Within this context, sends output of Python and native code to standard error: standard output is for results."""
    import ctypes

    sys.stdout.flush()
    lent = _Lent(sys.stderr, 2)
    with streams_kept(), stream_to(1, 2):
        sys.stdout = sys.stderr = lent
        try:
            yield
        finally:
            ctypes.CDLL(None).fflush(None)  # flushes what C has buffered before standard output is restored


class _Lent(io.TextIOBase):
    """A stream that writes to another one. Closing it does not close the other one."""

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
    """Hides native code's output to standard error. Use it for imports: their errors are exceptions."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nowhere, stream_to(2, nowhere.fileno()):
        yield
