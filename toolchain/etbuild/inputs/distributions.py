"""Installed distributions as the key holds them: version and content."""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import site
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from etbuild.errors import InputError, Problem

_INSTALL_SECONDS = 2.0  # that an installer may take to write the last files, besides the precision of times
_FOR_COMPILERS = re.compile(r"\.(?:h|hpp|cuh|cmake|pyi),")
_INSTALLERS = re.compile(r"__editable__|distutils-precedence\.pth|_virtualenv\.pth")
_IMPORTED = re.compile(r"(?:\bimport\s+|__import__\(\s*['\"])(\w+)")


@functools.cache
def facts(name: str) -> tuple[str, str]:
    """The version of an installed distribution, and the digest of its files that can be imported.

    The RECORD that an installer writes has their digests. One that is editable, or was installed without a RECORD, is
    read itself: each is looked at once in a process, and what was imported stays what it was.

    Raises:
        InputError: It has no RECORD, and its files are not found either.
    """
    distribution = importlib.metadata.distribution(name)
    record = distribution.read_text("RECORD")
    rows = _files(name, distribution) if record is None or _is_editable(distribution, record) else _rows(record)
    return distribution.version, hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


@functools.cache
def check_unedited(name: str) -> None:
    """Whether the files of a distribution are those of its RECORD, of which the key is made.

    Compared are sizes; and digests where a file is younger than the RECORD, which installers write last. A file that is
    missing is none that could be imported.

    Raises:
        InputError: A file is another one.
    """
    distribution = importlib.metadata.distribution(name)
    record = distribution.read_text("RECORD")
    if record is None or _is_editable(distribution, record):
        return  # its files themselves are in the key
    root = str(distribution.locate_file(""))
    written = _time_of(root, record)
    for file, digest, size in csv.reader(row for row in _rows(record) if not _FOR_COMPILERS.search(row)):
        path = os.path.join(root, file)  # noqa: PTH118 - of thousands
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        same_size = not size or found.st_size == int(size)
        if not same_size or (found.st_mtime > written and _record_digest(Path(path)) != digest):
            message = f"`{file}` of the installed package `{name}` was changed after its installation"
            hint = (
                f"install it again, or as an editable one; without `{name}-*.dist-info/RECORD` its files are digested"
            )
            raise InputError([Problem(message, None, hint)])


def _time_of(root: str, record: str) -> float:
    """When all files of a RECORD had been written."""
    names = [row.partition(",")[0] for row in record.splitlines() if ".dist-info/RECORD," in row]
    paths = [Path(root, name) for name in names]
    return max((path.stat().st_mtime for path in paths if path.exists()), default=math.inf) + _INSTALL_SECONDS


def _record_digest(path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def startup() -> dict[str, str]:
    """Code that Python runs at its start, by the name of the `.pth` file that has it: the digest of the file and of
    the modules that it imports.

    Left out is what installers write to find packages, whose content the key holds where they are used.
    """
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    files = [path for place in places for path in sorted(Path(place).glob("*.pth")) if not _INSTALLERS.match(path.name)]
    found = {}
    for path in files:
        text = path.read_text("utf-8", "replace")
        if any(line.startswith(("import ", "import\t")) for line in text.splitlines()):
            modules = [Path(place) for name in sorted(set(_IMPORTED.findall(text))) for place in _file_of(name)]
            digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in (path, *modules)]
            found[path.name] = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return found


def _file_of(module: str) -> list[str]:
    """The file of a module that is not Python's own."""
    spec = None if module in sys.stdlib_module_names else importlib.util.find_spec(module)
    return [spec.origin] if spec is not None and spec.has_location and spec.origin else []


def _rows(record: str) -> list[str]:
    """Those of files that can be imported.

    Left out is what differs between two installations of one release: bytecode, commands outside of the package, and
    the metadata, in which installers write too. Its version stands beside the digest.
    """
    return [
        row
        for row in record.splitlines()
        if "sha256=" in row and ".dist-info/" not in row and ".pyc," not in row and not row.startswith("../")
    ]


def _is_editable(distribution: Distribution, record: str) -> bool:
    """Whether its files lie where they are edited, and the RECORD has no more than what leads there."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable", False):
        return True
    names = [row.partition(",")[0] for row in _rows(record)]
    return all(name.endswith(".pth") for name in names) and any(
        _names_directory(Path(str(distribution.locate_file(name)))) for name in names
    )


def _names_directory(path: Path) -> bool:
    """Whether a `.pth` file leads to modules: a line of it is a directory, or starts with `import` and is run."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return any(line.strip() and not line.startswith(("#", "import ", "import\t")) for line in lines)


def _files(name: str, distribution: Distribution) -> list[str]:
    """The files of a distribution's modules, each with its digest."""
    rows = [
        f"{file},{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for file, path in _files_of_modules(name, distribution)
    ]
    if not rows:
        message = f"the package `{name}` is installed without a list of its files, and they are not found either"
        raise InputError([Problem(message, None, "install it from a wheel: `pip install` without `--editable`")])
    return rows


def edited_files(name: str) -> set[Path]:
    """The files whose content `facts` digests, of a distribution that is installed where it is edited."""
    distribution = importlib.metadata.distribution(name)
    record = distribution.read_text("RECORD")
    if record is not None and not _is_editable(distribution, record):
        return set()
    return {path for _, path in _files_of_modules(name, distribution)}


def _files_of_modules(name: str, distribution: Distribution) -> Iterator[tuple[str, Path]]:
    named = set((distribution.read_text("top_level.txt") or "").split())
    named |= {entry.module.partition(".")[0] for entry in distribution.entry_points}
    named.add(re.sub(r"[-.]", "_", name))
    for module in sorted(named):
        yield from _files_of_module(module)


def _files_of_module(module: str) -> Iterator[tuple[str, Path]]:
    """The files of a top-level module, by their name in it."""
    found = importlib.util.find_spec(module)
    places = (found.submodule_search_locations or [found.origin or ""]) if found is not None else []
    seen = set()  # an editable package may consist of links to directories, in a circle too
    for place in map(Path, places):
        if place.is_file():
            yield place.name, place
        for directory, below, files in os.walk(place, followlinks=True):
            real = os.path.realpath(directory)
            wanted = [] if real in seen else sorted(below)
            seen.add(real)
            below[:] = [each for each in wanted if each != "__pycache__" and not each.startswith(".")]
            for file in files:
                path = Path(directory, file)
                if path.suffix != ".pyc" and path.is_file():
                    yield f"{module}/{path.relative_to(place).as_posix()}", path
