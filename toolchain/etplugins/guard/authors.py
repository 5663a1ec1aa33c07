"""Finds the line of the declared sources that caused a read of a file, from the stack."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import FrameType

from etbuild.plugins import ROOT, driver

# Modules of the driver that may be on the stack between a source and the call that opens a file.
_WRAPPERS = {f"{ROOT}/{name}.py" for name in ("etplugins/guard/undeclared", "etbuild/inputs/user_code")}
IMPORT_MACHINERY = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen zipimport>")


@dataclass(frozen=True)
class Author:
    """The line of a source that caused an event.

    Attributes:
        line: The line of the source, such as `model.py:12, in create`.
        itself: No library is between this line and the event.
        importing: The line is an import statement, or a call that imports.
        is_thread: The event is in a thread. Its stack does not contain the line that started the thread.
    """

    line: str
    itself: bool
    importing: bool
    is_thread: bool = False


known_sources: dict[str, str] = {}
"""The import path of each source of this process, by file name. A later step may run modules of an earlier step."""


def author_of(frame: FrameType | None) -> Author | None:
    """The source line that called a frame. Every stack ends in the driver, except the stack of a thread of other code.

    Args:
        frame: The frame that does something, such as opening a file.

    Returns:
        None if no source caused it, or if a package did it while it was imported.
    """
    importing, inner = False, False
    while frame is not None:
        file = frame.f_code.co_filename
        if file in known_sources:
            line = f"{known_sources[file]}:{frame.f_lineno}, in {frame.f_code.co_name}"
            return Author(line, not inner, importing)
        if file in IMPORT_MACHINERY:
            if inner:
                return None
            importing = importing or frame.f_code.co_name != "get_data"  # `get_data` also reads resources
        elif file not in _WRAPPERS:
            if file.startswith(driver()) or _removes(frame):
                return None
            inner = True
        frame = frame.f_back
    return Author("a thread of the model", itself=False, importing=importing, is_thread=True)


def is_running(frame: FrameType | None, real: str) -> bool:
    """Whether a file contains code that is on the stack. Python reads the lines of such a file to show them."""
    while frame is not None and os.path.realpath(frame.f_code.co_filename) != real:
        frame = frame.f_back
    return frame is not None


def _removes(frame: FrameType) -> bool:
    """Whether the frame removes a directory name by name. It opens files by descriptors, but reads nothing."""
    return frame.f_code.co_name.startswith("_rmtree")
