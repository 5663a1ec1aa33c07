"""Which line of the declared sources has called what reads a file: the stack tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from etbuild.inputs.readable_places import DRIVER, python_directories

# On the stack between a source and what it opens.
_WRAPPERS = {str(Path(__file__).with_name(f"{name}.py")) for name in ("native_readers", "undeclared", "user_code")}
IMPORT_MACHINERY = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen zipimport>")
# Compilers of PyTorch keep caches of what they make, which hold nothing that a build depends on.
_COMPILERS = ("/torch/_dynamo/", "/torch/_functorch/", "/torch/_inductor/", "/triton/")
# Modules of Python's own that open what they are told to open: who calls them opens it.
_OPENERS = {
    *("bz2", "codecs", "configparser", "fileinput", "glob", "gzip", "io", "linecache", "lzma", "os", "pathlib"),
    *("shutil", "tarfile", "tempfile", "tokenize", "zipfile"),
}


@dataclass(frozen=True)
class Author:
    """The line of a source that an event comes from.

    Attributes:
        place: Such as `model.py:12, in create`.
        direct: Nothing but Python's own library lies between.
        itself: Nothing at all lies between, but for what opens what it is told to.
        importing: It is an import statement, or what stands for one.
    """

    place: str
    direct: bool
    itself: bool
    importing: bool


known_sources: dict[str, str] = {}
"""The import path of each source of this process, by file name: a later step may run modules of an earlier one."""


def author_of(frame: FrameType | None) -> Author | None:
    """Who has called what a frame does; None: no source has, or a package has while it was imported."""
    direct, itself, importing, inner = True, True, False, False
    while frame is not None:
        file = frame.f_code.co_filename
        if file in known_sources:
            place = f"{known_sources[file]}:{frame.f_lineno}, in {frame.f_code.co_name}"
            return Author(place, direct, itself, importing)
        if file in IMPORT_MACHINERY:
            if inner:
                return None
            importing = importing or frame.f_code.co_name != "get_data"  # which reads resources too
        elif file not in _WRAPPERS:
            if file.startswith(DRIVER) or _compiles(frame) or _removes(frame):
                return None
            inner = True
            direct = direct and _is_python(file)
            itself = itself and (file.startswith("<") or _is_opener(file))
        frame = frame.f_back
    return None


def is_running(frame: FrameType | None, real: str) -> bool:
    """Whether a file holds code of the stack, whose lines are read to show them."""
    while frame is not None and os.path.realpath(frame.f_code.co_filename) != real:
        frame = frame.f_back
    return frame is not None


def _compiles(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _COMPILERS)


def is_compiling(frame: FrameType | None) -> bool:
    """Whether a compiler of PyTorch is on the stack."""
    while frame is not None and not _compiles(frame):
        frame = frame.f_back
    return frame is not None


def _removes(frame: FrameType) -> bool:
    """Whether a directory is removed, name by name: that opens files by descriptors, and reads nothing."""
    return frame.f_code.co_name.startswith("_rmtree")


def _is_python(file: str) -> bool:
    """Whether code is of Python's own library, or made from a string."""
    own, packages = python_directories("stdlib", "platstdlib"), python_directories("purelib", "platlib")
    return file.startswith(("<", *own)) and not file.startswith(packages)


def _is_opener(file: str) -> bool:
    libraries = python_directories("stdlib", "platstdlib")
    own = next((directory for directory in libraries if file.startswith(directory)), None)
    return own is not None and file[len(own) :].partition(os.sep)[0].removesuffix(".py") in _OPENERS
