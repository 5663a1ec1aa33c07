"""Places that sources may read: what is installed, and what an editable installation holds."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DRIVER = str(Path(__file__).parents[1]) + os.sep
"""The directory of the driver's own modules."""


@functools.cache
def python_directories(*kinds: str) -> tuple[str, ...]:
    """Directories of this Python, as `sysconfig` calls them, each with a separator at its end."""
    return tuple(sysconfig.get_path(kind) + os.sep for kind in kinds)


def real_path(path: Any) -> str | None:
    """The real path; None of a descriptor, and of what can be no path."""
    if isinstance(path, int):
        return None
    with contextlib.suppress(TypeError, ValueError):
        return os.path.realpath(os.fsdecode(path))
    return None


def places_of(path: Any) -> set[str]:
    """A path as it is named, and where its links lead: Bazel and some installers make a link of each file."""
    named = os.fsdecode(path)
    return {os.path.abspath(named), os.path.realpath(named)}  # noqa: PTH100 - Path.resolve follows links


def lies_in(place: str, allowed: set[str]) -> bool:
    """Whether a path is one of these files and directories, or lies in one of the directories."""
    while place not in allowed:
        place, _, last = place.rpartition(os.sep)
        if not last:
            return False
    return True


def installed_places(sources: Iterable[str]) -> set[str]:
    """Directories of what is installed: Python's own, and others of the path, unless sources lie in them."""
    above = {str(parent) for file in sources for place in places_of(file) for parent in Path(place).parents}
    others = {place for entry in sys.path if entry for place in places_of(entry)}
    own = {
        place
        for entry in (DRIVER, sys.executable, *python_directories("stdlib", "platstdlib", "purelib", "platlib"))
        for place in places_of(entry)
    }
    return (others - above) | {place for entry in own for place in places_of(entry)}


@functools.cache
def _editable_places() -> tuple[str, ...]:
    """Directories of distributions that are installed where they are edited, whose files are in the key."""
    import importlib.metadata
    from urllib.parse import unquote, urlparse

    found = []
    for distribution in importlib.metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable", False):
            found.append(os.path.realpath(unquote(urlparse(origin["url"]).path)) + os.sep)
    return tuple(found)


def is_editable(real: str, packages: set[str], sources: Iterable[str]) -> bool:
    """Whether a file is of a distribution that is installed where it is edited.

    Args:
        real: The file's real path.
        packages: The top-level names that the import statements of the sources name.
        sources: The file names of all sources. If they lie in such a distribution, only its modules that the key holds
            count.
    """
    if not real.startswith(_editable_places()):
        return False
    if not any(file.startswith(_editable_places()) for file in sources):
        return True
    return source_of_bytecode(real) in _edited_modules(frozenset(packages))


@functools.cache
def _edited_modules(packages: frozenset[str]) -> frozenset[str]:
    from etbuild.inputs.distributions import edited_files
    from etbuild.inputs.toolchain import distributions_of

    files = {os.path.realpath(file) for name in distributions_of(packages) for file in edited_files(name)}
    return frozenset(file for file in files if file.endswith(tuple(importlib.machinery.all_suffixes())))


def source_of_bytecode(file: str) -> str:
    """The source that a file of bytecode was made from."""
    with contextlib.suppress(ValueError, NotImplementedError):
        return importlib.util.source_from_cache(file)
    return file
