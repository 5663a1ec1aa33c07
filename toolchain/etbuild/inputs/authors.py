"""Finds the line of the declared sources that caused a file to be read, by looking at the stack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from etbuild.inputs.readable_places import DRIVER, python_directories

# Modules of the driver that may be on the stack between a source and the call that opens a file.
_WRAPPERS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("native_readers", "undeclared", "user_code")}
IMPORT_MACHINERY = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen zipimport>")
# PyTorch's compilers keep caches of what they make. A build does not depend on these caches.
_COMPILERS = ("/torch/_dynamo/", "/torch/_functorch/", "/torch/_inductor/", "/triton/")
# Modules of Python's library that open what their callers name. The caller counts as the one that opens it.
_OPENERS = {
    *("bz2", "codecs", "configparser", "ctypes", "fileinput", "glob", "gzip", "io", "linecache", "lzma", "os"),
    *("pathlib", "shutil", "tarfile", "tempfile", "tokenize", "zipfile"),
}
# Modules of Python's library that call what their callers name, in another thread or process.
_CALLERS = {"asyncio", "concurrent", "multiprocessing", "threading"}


@dataclass(frozen=True)
class Author:
    """The line of a source that caused an event.

    Attributes:
        place: The line, such as `model.py:12, in create`.
        itself: Nothing is between this line and the event, except modules that open or call what they are told to.
        importing: The line is an import statement, or a call that imports.
        is_thread: The event is in a thread, whose stack does not contain the line that started it.
    """

    place: str
    itself: bool = True
    importing: bool = False
    is_thread: bool = False


known_sources: dict[str, str] = {}
"""The import path of each source of this process, by file name. A later step may run modules of an earlier one."""


def author_of(frame: FrameType | None) -> Author | None:
    """The source line that called a frame. Every stack ends in the driver, except that of a thread of other code.

    Args:
        frame: The frame that does something, such as opening a file.

    Returns:
        None if no source caused it, or if a package did it while it was imported.
    """
    itself, importing, inner = True, False, False
    for current in _stack(frame):
        file = current.f_code.co_filename
        if file in known_sources:
            place = f"{known_sources[file]}:{current.f_lineno}, in {current.f_code.co_name}"
            return Author(place, itself, importing)
        if file in IMPORT_MACHINERY:
            if inner:
                return None
            importing = importing or current.f_code.co_name != "get_data"  # `get_data` also reads resources
        elif file not in _WRAPPERS:
            if file.startswith(DRIVER) or _compiles(current) or _removes(current):
                return None
            inner = True
            itself = itself and (file.startswith("<") or _is_opener(file))
    return Author("a thread of the model", itself=False, importing=importing, is_thread=True)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_running(frame: FrameType | None, real: str) -> bool:
    """Whether a file contains code that is on the stack. Python reads the lines of such a file to show them."""
    return any(os.path.realpath(each.f_code.co_filename) == real for each in _stack(frame))


def comes_from(frame: FrameType | None, modules: set[str]) -> bool:
    """Whether code of one of these modules is on the stack."""
    return any(each.f_globals.get("__name__") in modules for each in _stack(frame))


def _compiles(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _COMPILERS)


def is_compiling(frame: FrameType | None) -> bool:
    """Whether a compiler of PyTorch is on the stack."""
    return any(map(_compiles, _stack(frame)))


def _removes(frame: FrameType) -> bool:
    """Whether a frame belongs to `shutil.rmtree`, which opens directories but reads no file."""
    return frame.f_code.co_name.startswith("_rmtree")


def _is_opener(file: str) -> bool:
    libraries = python_directories("stdlib", "platstdlib")
    library = next((directory for directory in libraries if file.startswith(directory)), None)
    return library is not None and file[len(library) :].partition(os.sep)[0].removesuffix(".py") in _OPENERS | _CALLERS
