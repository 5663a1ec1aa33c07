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
    with _stream_to(1, 2), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def native_messages_off() -> Iterator[None]:
    """Hides what native code writes to standard error: for an import, whose errors are exceptions."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nowhere, _stream_to(2, nowhere.fileno()):
        yield


@contextlib.contextmanager
def _stream_to(stream: int, other: int) -> Iterator[None]:
    saved = os.dup(stream)
    os.dup2(other, stream)
    try:
        yield
    finally:
        os.dup2(saved, stream)
        os.close(saved)
