"""Checks names of declared inputs, and the names that become parts of file names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from etbuild.errors import DocumentPath, Problem, steers
from etbuild.files.weights_suffixes import NUMPY_SUFFIX, WEIGHTS_SUFFIXES

_LONGEST_NAME, _LONGEST_PATH = 255, 1000  # for file names: bytes of each part, and characters of the path
OTHER_OUTPUTS = ("etrecord", "export", "pte")
"""The endings after the program's name, in the names of the program and of the directory that build rules export to."""


def check_input(name: str, path: DocumentPath) -> Iterator[Problem]:
    """Checks the name of a declared input."""
    if steers(name):
        yield Problem(f"`{name}` holds a character that cannot be printed", path, "give the file another name")
    elif len(name) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in name.split("/")):
        yield Problem(f"`{name}` is too long for a file name", path)
    elif name.startswith("/") or "\\" in name or (len(name) > 1 and name[1] == ":"):
        hint = "write the path of a declared input, relative to the manifest"
        yield Problem(f"`{name}` is not a relative path with `/`", path, hint)
    elif ".." in PurePosixPath(name).parts:
        hint = "declare the file as an input, and name it relative to the repository's root"
        yield Problem(f"`{name}` points outside the declared inputs", path, hint)
    elif name == ".":
        yield Problem("`.` is not a name of an input", path, "write the name of a file, or of a folder with weights")
    elif str(PurePosixPath(name)) != name:
        yield Problem(f"`{name}` is not the shortest form of the path", path, f"write `{PurePosixPath(name)}`")


def check_suffix(
    name: str, path: DocumentPath, known: tuple[str, ...] = WEIGHTS_SUFFIXES, more: str = ""
) -> Iterator[Problem]:
    """Checks the type of a file. `more` is for the hint."""
    if not name.endswith(known):
        yield Problem(f"`{name}` has an unknown file type", path, f"known: {', '.join(known)}{more}")


def check_example(name: str, path: DocumentPath, loaded: bool) -> Iterator[Problem]:
    """Checks the name of a file with an input. A loader may read any file."""
    yield from check_input(name, path)
    if not loaded:
        yield from check_suffix(name, path, (*WEIGHTS_SUFFIXES, NUMPY_SUFFIX), "; for another file, name a `loader`")


def check_tag(tag: str, path: DocumentPath) -> Iterator[Problem]:
    """Checks the name of a tag of named data."""
    if tag in OTHER_OUTPUTS:
        message = f"`{tag}` cannot be a tag: NAME.{tag} is another output"
        yield Problem(message, path, "choose another name for the tag", at_key=True)
