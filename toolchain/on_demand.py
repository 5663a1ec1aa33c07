"""Makes packages available that a machine has only in archives, and writes each to disk when it is imported.

    python3 on_demand.py VERSION PACKAGES DIRECTORY

makes DIRECTORY a virtual environment with all packages of PACKAGES: the directory that split_packages.py makes.
VERSION is that of the interpreter, or empty. At first the environment has only the
descriptions of the packages (`*.dist-info`). The files of a package are written when it is imported: a step without
torch writes about a thousand files, and one with torch about twelve thousand of 35,000. Large binaries are links, and
bytecode is read from the archive.

Each action has a DIRECTORY of its own and removes it, so that no action can change what another one imports.

A file that a program reads without importing its package is not there. torch's C++ headers are there after the import
of `torch.utils.cpp_extension`, which knows where they are.

Uses only the standard library, since it runs before there are packages.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import mmap
import os
import shutil
import struct
import sys
import threading
from collections.abc import Iterable
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)

SHEBANG = "#!/usr/bin/env python"
"""The beginning of the first line of `python` in PACKAGES, and of a packages.pex. The version of Python follows."""

AT_ONCE = "-at-once"
"""The unit with the files that are written first. No module has a `-` in its name."""

_HEADERS = "torch-include"
_MODULE_WITH_HEADERS = "torch.utils.cpp_extension"
# torch looks for libraries in these packages without importing them.
_FOUND_BY_PATH = {"nvidia"}
_PARTS_OF_PEX = {"__main__.py", "packages.json"}
# Before the time of every RECORD, so that no file looks changed after its installation to the driver.
_WRITTEN = 315532800  # seconds since the epoch


def units(names: Iterable[str]) -> dict[str, list[str]]:
    """Groups files of a site directory, by their names in it, into units that are written together.

    A unit has the name of a top-level package and all its files. `AT_ONCE` has those that belong to no package.
    """
    names = [name for name in names if not name.endswith("/") and name.split("/")[0] not in _PARTS_OF_PEX]
    modules = {name.split("/")[0] for name in names if name.endswith((".py", ".so"))} - _FOUND_BY_PATH
    found: dict[str, list[str]] = {AT_ONCE: []}
    for name in names:
        top, *below = name.split("/")
        unit = top if below and top.isidentifier() and top in modules else AT_ONCE
        found.setdefault(_HEADERS if name.startswith("torch/include/") else unit, []).append(name)
    return found


class Unit:
    """The files of a unit, one after the other in one file. Their index follows, as JSON, and then its length.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        [size] = struct.unpack("<Q", self._bytes[-8:])
        self._places: dict[str, tuple[int, int, bool]] = json.loads(self._bytes[-8 - size : -8])
        self.names: Iterable[str] = self._places.keys()

    def read(self, name: str) -> tuple[bytes, bool]:
        """The content of a file, and whether it is executable."""
        start, size, executable = self._places[name]
        return self._bytes[start : start + size], executable

    @staticmethod
    def make(path: str, files: Iterable[tuple[str, bytes, bool]]) -> None:
        """Makes the file of a unit from the name and content of each file, and whether it is executable."""
        with open(path, "wb") as out:
            places = {}
            for name, content, executable in files:
                places[name] = (out.tell(), len(content), executable)
                out.write(content)
            index = json.dumps(places, separators=(",", ":")).encode()
            out.write(index + struct.pack("<Q", len(index)))


class _Packages:
    """The directory that split_packages.py makes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: dict[str, Unit] = {}
        self.units = {name.removesuffix(".unit") for name in os.listdir(path) if name.endswith(".unit")}

    def names(self, unit: str) -> Iterable[str]:
        return self._unit(unit).names

    def read(self, unit: str, name: str) -> tuple[bytes, bool]:
        return self._unit(unit).read(name)

    def links(self, unit: str) -> dict[str, str]:
        """The large binaries of a unit: their names in a site directory, and where they are."""
        root = os.path.join(self._path, "binaries", unit)
        files = [os.path.join(place, file) for place, _, files in os.walk(root) for file in files]
        return {os.path.relpath(file, root): file for file in files}

    def _unit(self, unit: str) -> Unit:
        if unit not in self._open:
            self._open[unit] = Unit(os.path.join(self._path, f"{unit}.unit"))
        return self._open[unit]


class Environment:
    """The packages in the site directory of a virtual environment.

    Args:
        packages: The directory of split_packages.py.
        site: The site directory.
    """

    def __init__(self, packages: str, site: str) -> None:
        self._packages = _Packages(packages)
        self._site = site
        self._waiting = set(self._packages.units) - {AT_ONCE}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a package that is not written yet. Writes it only if it has no code of its own: programs look for
        packages that they do not import, too."""
        del path, target
        unit = _HEADERS if name == _MODULE_WITH_HEADERS else name
        if unit not in self._waiting:
            return None
        code = f"{name}/__init__.py"
        if code not in self._packages.names(unit):
            self.write(unit)
            return None
        place = os.path.join(self._site, name)
        loader = self.loader(name, os.path.join(self._site, code))
        return importlib.util.spec_from_file_location(
            name, loader.path, loader=loader, submodule_search_locations=[place]
        )

    def loader(self, name: str, path: str) -> _Loader:
        """The loader of a module in a file of the site directory."""
        return _Loader(name, path, self)

    def finder(self, directory: str) -> FileFinder:
        """A finder for a directory of modules, as `sys.path_hooks` has it.

        Raises:
            ImportError: The directory is not in the site directory.
        """
        if directory != self._site and not directory.startswith(self._site + os.sep):
            raise ImportError(directory)
        return FileFinder(directory, (ExtensionFileLoader, EXTENSION_SUFFIXES), (self.loader, [".py"]))  # type: ignore[arg-type]

    def bytecode(self, path: str) -> bytes:
        """The content of a file with bytecode.

        Raises:
            OSError: The archive does not have it.
        """
        name = os.path.relpath(path, self._site).replace(os.sep, "/")
        try:
            return self._packages.read(name.split("/")[0], name)[0]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, unit: str) -> None:
        """Writes a unit, if it has not been written yet."""
        if unit not in self._waiting:
            return
        below = os.path.join(self._site, unit.replace("-", os.sep))
        if not os.path.exists(below):
            # Written elsewhere and then moved, because another process or thread may import it at the same time.
            partial = os.path.join(self._site, f".{unit}-{os.getpid()}-{threading.get_ident()}")
            self.write_below(partial, unit)
            try:
                os.rename(os.path.join(partial, unit.replace("-", os.sep)), below)
            except OSError:
                if not os.path.exists(below):
                    raise
            shutil.rmtree(partial)
            importlib.invalidate_caches()
        self._waiting.discard(unit)

    def write_below(self, directory: str, unit: str) -> None:
        """Writes the files of a unit below a directory, without bytecode."""
        names = [name for name in self._packages.names(unit) if not name.endswith(".pyc")]
        links = self._packages.links(unit)
        for place in sorted({os.path.dirname(name) for name in (*names, *links)}):
            os.makedirs(os.path.join(directory, place), exist_ok=True)
        for name in names:
            content, executable = self._packages.read(unit, name)
            path = os.path.join(directory, name)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755 if executable else 0o644)
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            os.utime(path, (_WRITTEN, _WRITTEN))
        for name, binary in links.items():
            os.symlink(binary, os.path.join(directory, name))


class _Loader(SourceFileLoader):
    """Loads a module, after the files of its package are written."""

    def __init__(self, name: str, path: str, environment: Environment) -> None:
        super().__init__(name, path)
        self._environment = environment

    def path_stats(self, path: str) -> object:  # type: ignore[override]
        self._environment.write(self.name.partition(".")[0])
        return super().path_stats(path)

    def get_data(self, path: str) -> bytes:
        self._environment.write(self.name.partition(".")[0])
        try:
            return super().get_data(path)
        except FileNotFoundError:
            return self._environment.bytecode(path)


def install(packages: str) -> None:
    """Makes this process find the packages. Each process of an environment calls this when it starts."""
    if any(isinstance(finder, Environment) for finder in sys.meta_path):
        return  # Python reads a .pth file of a virtual environment twice
    site = os.path.dirname(__file__)
    environment = Environment(packages, site)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), environment)
    sys.path_hooks.insert(0, environment.finder)
    sys.path_importer_cache.pop(site, None)


def make(packages: str, directory: str) -> None:
    """Makes a virtual environment with the packages, for the interpreter that runs this."""
    packages, directory = os.path.abspath(packages), os.path.abspath(directory)
    site = os.path.join(directory, "lib", "python{}.{}".format(*sys.version_info), "site-packages")
    os.makedirs(site)
    os.makedirs(os.path.join(directory, "bin"))
    python = _home()
    os.symlink(python, os.path.join(directory, "bin", "python"))
    with open(os.path.join(directory, "pyvenv.cfg"), "w", encoding="utf-8") as file:
        file.write(f"home = {os.path.dirname(python)}\ninclude-system-site-packages = false\n")
    Environment(packages, site).write_below(site, AT_ONCE)
    module = "__rules_executorch"  # sorted before other .pth files, which may import packages
    shutil.copyfile(__file__, os.path.join(site, f"{module}.py"))
    with open(os.path.join(site, f"{module}.pth"), "w", encoding="utf-8") as file:
        file.write(f"import {module}; {module}.install({packages!r})\n")
    # What a step may read includes what is behind links here: a package may be imported late. A sandbox may have a link
    # for each file of PACKAGES.
    os.symlink(packages, os.path.join(site, f"{module}.packages"))
    os.symlink(
        os.path.dirname(os.path.realpath(os.path.join(packages, "python"))), os.path.join(site, f"{module}.files")
    )


def _home() -> str:
    """The path of this interpreter beside its standard library. The interpreter may be a link: one of the build into a
    cache, an installed one from another directory."""
    python = os.path.abspath(sys.executable)
    library = os.path.join(os.path.dirname(python), "..", "lib", "python{}.{}".format(*sys.version_info), "os.py")
    return python if os.path.exists(library) else os.path.realpath(python)


def check_python(packages: str) -> None:
    """Exits if the packages are for another version of Python than the one that runs this."""
    with open(os.path.join(packages, "python") if os.path.isdir(packages) else packages, "rb") as file:
        first = file.readline(len(SHEBANG) + 80).decode("ascii", "replace").strip()
    needed = first.removeprefix(SHEBANG)
    found = "{}.{}".format(*sys.version_info)
    if needed not in (first, found):
        sys.exit(f"{sys.executable} is Python {found}, but the packages are for Python {needed}")


def check_version(wanted: str) -> None:
    """Exits if this interpreter does not have the version in the keys of actions, such as `3.12.4`. For an interpreter
    that is named by its path, keys hold nothing else."""
    found = "{}.{}.{}".format(*sys.version_info)
    if wanted and not f"{found}.".startswith(f"{wanted}."):
        sys.exit(
            f"{sys.executable} is Python {found}, and Bazel's Python toolchain says that it is {wanted}: correct "
            "`interpreter_version_info` of its `py_runtime`"
        )


if __name__ == "__main__":
    check_version(sys.argv[1])
    check_python(sys.argv[2])
    make(*sys.argv[2:])
