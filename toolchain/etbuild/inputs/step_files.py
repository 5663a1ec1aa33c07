"""Which files of the driver a step runs. Its key holds them, and the step imports no other module of the driver.

`step_files.bzl` lists them; `tools/step_files.py` computes them from the imports. What only some programs use is a
part, such as a backend: a step runs its files if the program has this part.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from etbuild import plugins
from etbuild.errors import InputError
from etbuild.files.digests import digest

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("etbuild.", "etkit.")
OF_PROGRAMS = frozenset(("export", "lower", "report"))
"""The steps that make the files of a program. Planning is not one of them: what a plan says is in the key as it is."""
_TEXT_OR_COMMENT = re.compile(r""" "[^"\\]*(?:\\.[^"\\]*)*" | '[^'\\]*(?:\\.[^'\\]*)*' | \#.* """, re.VERBOSE)
_QUOTES = '"' * 3
_OUTSIDE = "outside"  # the part that cannot change what a step writes


@functools.cache
def _steps() -> dict[str, frozenset[str]]:
    """For each file that a step runs, `STEP` or `STEP/PART` of each."""
    text = (_ROOT / "step_files.bzl").read_text("utf-8").partition("STEP_FILES =")[2]
    rows = json.loads(text[: text.rindex(",")] + "}")  # of JSON, it differs in the last comma only
    return {path: frozenset(steps) for path, steps in rows.items()}


def of_steps(steps: Collection[str], parts: Collection[str] = ()) -> list[str]:
    """The driver's files that these steps run for a program with these parts: `etbuild/export/archive.py`, sorted."""
    wanted = {*steps, *(f"{step}/{part}" for step in steps for part in parts)}
    return sorted(path for path, of in _steps().items() if not of.isdisjoint(wanted))


def digest_of(steps: Collection[str], parts: Collection[str] = (), used: Collection[str] = ()) -> str:
    """The digest of the driver's files that these steps run for a program with these parts and plug-ins."""
    own = _digest(frozenset(steps), frozenset(parts))
    return digest([own, _digest_of_plugins(frozenset(used))]) if used else own


def remember() -> None:
    """Digests all files now, for a process that lives long: its modules stay what they are when a file changes."""
    for path in _steps():
        _file_digest(path)


@functools.cache
def _digest(steps: frozenset[str], parts: frozenset[str]) -> str:
    return digest({path: _file_digest(path) for path in of_steps(steps, parts)})


@functools.cache
def _digest_of_plugins(packages: frozenset[str]) -> str:
    """The digest of all files of plug-ins, and of those that they use."""
    directories = [plugin.directory for plugin in plugins.with_used(packages)]
    files = [file for directory in directories for kind in ("*.py", "*.json") for file in directory.rglob(kind)]
    return digest({path: _file_digest(path) for path in sorted(str(file.relative_to(_ROOT.parent)) for file in files)})


@functools.cache
def _file_digest(path: str) -> str:
    text = (_ROOT.parent / path).read_text("utf-8")
    return hashlib.sha256((code_of(text) if path.endswith(".py") else text).encode()).hexdigest()


def code_of(source: str) -> str:
    """A Python source without comments, docstrings and empty lines. Sources with other code have other texts.

    It is for the driver's sources, whose texts of several lines have three quotation marks. A test reads each of them.
    """
    codes = source.split(_QUOTES)  # by turns code and text
    for index in range(1, len(codes), 2):
        _, _, line = codes[index - 1].rpartition("\n")
        if not line.strip() and codes[index + 1].startswith("\n"):
            codes[index] = ""
        else:  # in one line, so that it keeps its empty lines and the ends of its lines
            codes[index] = codes[index].replace("\n", "\0").replace("#", "\1")
    lines = _QUOTES.join(codes).split("\n")
    return "\n".join(filter(None, (_without_comment(line).rstrip() for line in lines)))


def _without_comment(line: str) -> str:
    if "#" not in line:
        return line
    return _TEXT_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], line)


@contextmanager
def only(steps: Collection[str], parts: Collection[str]) -> Iterator[None]:
    """Within this context, this process and its forks import no module of the driver that the key of the steps lacks.

    Raises:
        AssertionError: A step imports another module. This is a bug of ours: the table or the parts are wrong.
        InputError: The model imports the Python interface.
    """
    name = f"{', '.join(sorted(steps))} with {', '.join(sorted(parts))}"
    finder = _Finder(frozenset(of_steps(steps, {*parts, _OUTSIDE})), name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def for_later_steps() -> Iterator[None]:
    """Within this context, `only` does not hold: for what a process does for later steps while a fork runs one."""
    guards = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    for guard in guards:
        sys.meta_path.remove(guard)
    try:
        yield
    finally:
        sys.meta_path[:0] = guards


class _Finder:
    """Refuses to find modules of the driver that are not among some files."""

    def __init__(self, files: frozenset[str], steps: str) -> None:
        self._files = files
        self._steps = steps

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds nothing: other finders do."""
        del path, target
        file = name.replace(".", "/")
        if name.startswith(_PACKAGES) and self._files.isdisjoint((f"{file}.py", f"{file}/__init__.py")):
            if name == "etbuild.api":
                raise InputError.of("a model cannot use the Python interface of `etbuild`", "build with it elsewhere")
            raise AssertionError(f"`{name}` is not in the key of {self._steps}: see `step_files.bzl`")
        return None
