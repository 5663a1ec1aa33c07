"""Keeps what libraries and models say out of results, and what is said to other developers out of diagnostics."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator


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
def stdout_for_results() -> Iterator[None]:
    """Sends to standard error what is printed inside, by Python or native code: standard output is for results."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
