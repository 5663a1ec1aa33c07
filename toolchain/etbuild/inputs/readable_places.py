"""Places that sources may read: what is installed, including editable installations."""

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
    """Directories of this Python, by their names in `sysconfig`. Each ends with a separator."""
    return tuple(sysconfig.get_path(kind) + os.sep for kind in kinds)


def real_path(path: Any) -> str | None:
    """The real path; None for a descriptor and for anything that cannot be a path."""
    if isinstance(path, int):
        return None
    with contextlib.suppress(TypeError, ValueError):
        return os.path.realpath(os.fsdecode(path))
    return None


def places_of(path: Any) -> set[str]:
    """The path as given, and the path to which its links lead. Bazel and some installers make a link for each file."""
    named = os.fsdecode(path)
    return {os.path.abspath(named), os.path.realpath(named)}  # noqa: PTH100 - Path.resolve follows links


def lies_in(place: str, allowed: set[str]) -> bool:
    """Whether a path is one of these files and directories, or is inside one of the directories."""
    while place not in allowed:
        place, _, last = place.rpartition(os.sep)
        if not last:
            return False
    return True


def installed_places(sources: Iterable[str]) -> set[str]:
    """Directories of installed code: Python's own, and those entries of `sys.path` that contain no sources."""
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
    """Directories of editable distributions. The key covers their files."""
    import importlib.metadata
    from urllib.parse import unquote, urlparse

    places = []
    for distribution in importlib.metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable", False):
            places.append(os.path.realpath(unquote(urlparse(origin["url"]).path)) + os.sep)
    return tuple(places)


def is_editable(real: str, packages: set[str], sources: Iterable[str]) -> bool:
    """Whether a file belongs to an editable distribution.

    Args:
        real: The file's real path.
        packages: The top-level names that the import statements of the sources name.
        sources: The file names of all sources. If some of them are inside an editable distribution, only modules that
            the key covers count.
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
    """The source from which a bytecode file was made. Other files are returned unchanged."""
    with contextlib.suppress(ValueError, NotImplementedError):
        return importlib.util.source_from_cache(file)
    return file


def mapped_libraries() -> set[str]:
    """The real paths of the shared libraries in this process. Empty if the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    files = (line.split(maxsplit=5)[5] for line in lines if "/" in line)
    return {file for file in files if ".so" in Path(file).name}
