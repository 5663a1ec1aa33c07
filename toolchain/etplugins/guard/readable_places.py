"""Places that sources may read: installed code, including editable installations."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from etbuild.backends.needs import SDKS
from etbuild.plugins import driver

HARDWARE = ("/dev", "/proc", "/sys")
"""The places where libraries look for processors and devices."""

# The directories below the prefixes that a system's installers write. Users keep their files elsewhere.
_PREFIXES = ("/", "/usr", "/usr/local")
_INSTALLED = ("bin", "etc", "include", "lib", "lib32", "lib64", "libexec", "sbin", "share", "ssl")
_TOOLS = ("CC", "CXX", "FLATC_EXECUTABLE", "ANDROID_NDK", "CUDA_HOME")  # variables that hold places of tools
_OF_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")
_OF_SYSTEMS = ("/gnu/store", "/nix/store", "/opt")


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


def installed_places(sources: Iterable[str]) -> tuple[set[str], set[str]]:
    """Directories of installed code, without those that contain sources.

    Returns:
        First the directories whose files a key covers: Python's own, and those entries of `sys.path` that installers
        write. Then the others: entries of `sys.path` whose files belong to no distribution, and editable projects. The
        key covers only the modules of such a project.
    """
    above = _above(sources)
    covered = [entry for entry in sys.path if entry and _is_covered(entry)]
    installed = {place for entry in covered for place in (*places_of(entry), *_behind_links(entry))}
    of_python = {
        place
        for entry in (*driver(), sys.executable, *map(sysconfig.get_path, _OF_PYTHON))
        for place in places_of(entry)
    }
    of_python |= {place for entry in driver() for place in _behind_links(entry)}  # Bazel links each file
    others = {place for entry in (*sys.path, *_editable_places()) if entry for place in places_of(entry)}
    return (installed - above) | of_python, others - above - installed - of_python


def _above(sources: Iterable[str]) -> set[str]:
    """The directories that contain sources."""
    return {str(parent) for file in sources for place in places_of(file) for parent in Path(place).parents}


def places_of_machine(sources: Iterable[str]) -> set[str]:
    """Files and directories of the machine that libraries need but no key covers: installed files of the system,
    programs, shared libraries and SDKs. Leaves out those that contain sources."""
    above = _above(sources)
    own = [prefix for prefix in (sys.prefix, sys.base_prefix) if prefix not in _PREFIXES]
    places = {os.path.join(prefix, name) for prefix in (*_PREFIXES, *own) for name in _INSTALLED}  # noqa: PTH118
    places |= {*_OF_SYSTEMS, *own, *map(str, Path("/usr/local").glob("cuda*"))}
    places |= {str(each) for system in above.intersection(_OF_SYSTEMS) for each in Path(system).glob("*")}
    places |= {os.path.dirname(library) for library in mapped_libraries()}  # noqa: PTH120
    for variable in ("PATH", "LD_LIBRARY_PATH", *_TOOLS, *SDKS):
        places |= {each for each in os.environ.get(variable, "").split(os.pathsep) if each.startswith(os.sep)}
    return {real for place in filter(os.path.exists, places) for real in places_of(place)} - above - {os.sep}


def _behind_links(entry: str) -> set[str]:
    """The places of the packages of a directory, if an installer has made links to them."""
    found = set()
    with contextlib.suppress(OSError):
        for each in os.scandir(entry):
            if each.is_symlink():
                found.add(os.path.realpath(each.path))
            elif os.path.islink(first := f"{each.path}/__init__.py"):  # noqa: PTH114
                found.add(os.path.dirname(os.path.dirname(os.path.realpath(first))))  # noqa: PTH120
    return found


def _is_covered(entry: str) -> bool:
    """Whether an entry of `sys.path` is a directory of installed distributions, or is missing."""
    if not os.path.lexists(entry):
        return True
    with contextlib.suppress(OSError):
        return any(each.suffix in (".dist-info", ".egg-info") for each in Path(entry).iterdir())
    return False


@functools.cache
def _editable_distributions() -> dict[str, str]:
    """The directory of each editable distribution, by the distribution's name. Each directory ends with a separator."""
    import importlib.metadata
    from urllib.parse import unquote, urlparse

    from etbuild.key.toolchain import canonical_name

    places = {}
    for distribution in importlib.metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable", False):
            place = os.path.realpath(unquote(urlparse(origin["url"]).path)) + os.sep
            places[canonical_name(distribution.metadata["Name"])] = place
    return places


def _editable_places() -> tuple[str, ...]:
    return tuple(_editable_distributions().values())


def is_editable(real: str, packages: set[str]) -> bool:
    """Whether a file belongs to a module of an editable distribution that the key covers.

    Args:
        real: The file's real path.
        packages: The top-level names that the import statements of the sources name.
    """
    return real.startswith(_editable_places()) and source_of_bytecode(real) in _edited_files(frozenset(packages))


def edited_files(packages: set[str]) -> tuple[set[str], set[str]]:
    """The files of modules of editable distributions that the key covers, and directories that Python lists to find
    them. The arguments are those of `is_editable`."""
    files = _edited_files(frozenset(packages)) if _editable_places() else frozenset[str]()
    places = {place for place in _editable_places() if any(file.startswith(place) for file in files)}
    return {*files}, places


@functools.cache
def _edited_files(packages: frozenset[str]) -> frozenset[str]:
    from etbuild.key.distributions import edited_files
    from etbuild.key.toolchain import distributions_of

    names = [name for name in distributions_of(packages) if name in _editable_distributions()]
    return frozenset(os.path.realpath(file) for name in names for file in edited_files(name))


def source_of_bytecode(file: str) -> str:
    """The source from which a bytecode file was made. Other files are returned unchanged.

    `importlib.util.source_from_cache` fails for sources whose names have several dots.
    """
    directory, name = os.path.split(file)
    above, cache = os.path.split(directory)
    stem, tag, _ = name.rpartition(f".{sys.implementation.cache_tag}.")
    return os.path.join(above, f"{stem}.py") if tag and cache == "__pycache__" else file  # noqa: PTH118


def mapped_libraries() -> set[str]:
    """The real paths of the shared libraries in this process. Empty if the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    files = (line.split(maxsplit=5)[5] for line in lines if "/" in line)
    return {file for file in files if ".so" in Path(file).name}
