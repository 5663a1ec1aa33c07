"""Versions and content digests of installed distributions, for the key."""

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

from etbuild.errors import InputError
from etbuild.surroundings.environment import search_path

_INSTALL_SECONDS = 2.0  # the time an installer may take for the last files, plus the precision of file times
_FOR_COMPILERS = (".h", ".hpp", ".cuh", ".cmake", ".pyi")
# Many packages install these directories by mistake, and one overwrites the files of another. No package imports them.
OF_DEVELOPERS = frozenset({"benchmark", "benchmarks", "docs", "example", "examples", "scripts", "test", "tests"})
_INSTALLERS = re.compile(r"__editable__|__rules_executorch\.pth|distutils-precedence\.pth|_virtualenv\.pth")
# Three fields of METADATA. The parser of `email` takes ten times as long to be imported and to find them.
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_REQUIREMENT = re.compile(r"^Requires-Dist:[ \t]*(.*\S)", re.MULTILINE | re.IGNORECASE)
_FOLDED = re.compile(r"\n[ \t]+")
# The first name of a row of a RECORD, if the file is a module.
_TOP_LEVEL_NAME = re.compile(r'^"?([^,"/.\n]+)(?:/[^,\n]*|(?:\.[\w-]+)*)\.(?:py|so|pyd)"?,', re.MULTILINE)
_IMPORTED = re.compile(r"(?:\bimport\s+|__import__\(\s*['\"])(\w+)")


_distribution = functools.cache(importlib.metadata.distribution)  # looks into each entry of `sys.path` each time


@functools.cache
def facts(name: str) -> tuple[str, str]:
    """The version of an installed distribution, and the digest of those of its files that can be imported.

    The digests of the files come from the RECORD that an installer writes. If the distribution is editable or has no
    RECORD, its files are read, once in a process: modules that were imported do not change afterwards.

    Raises:
        InputError: The distribution has no RECORD, and its files cannot be found.
    """
    distribution = _distribution(name)
    rows = _rows(distribution)
    if rows is None or _is_editable(distribution, rows):
        sha256 = _digest(_files(name, distribution))
    else:
        sha256 = _by_record[_metadata(distribution)] = _digest(rows)
    return version_and_requirements(name)[0], sha256


_by_record: dict[Path, str] = {}  # digests that `facts` has made from a RECORD; `environment` needs the same ones


def _digest(rows: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


@functools.cache
def version_and_requirements(name: str) -> tuple[str, tuple[str, ...]]:
    """The version of an installed distribution, and its requirements as its metadata states them.

    Reads the metadata once, and without the description, which `importlib.metadata` would parse at each question.

    Raises:
        PackageNotFoundError: The distribution is not installed.
    """
    distribution = _distribution(name)
    text = distribution.read_text("METADATA")
    if text is None:  # an older form, which `setup.py develop` writes
        return distribution.version, tuple(distribution.requires or ())
    metadata = _FOLDED.sub(" ", text.partition("\n\n")[0])
    version = _VERSION.search(metadata)
    if version is None:
        raise InputError.of(f"the metadata of the installed package `{name}` has no version", "install it again")
    return version.group(1), tuple(_REQUIREMENT.findall(metadata))


def by_top_level_name() -> dict[str, list[str]]:
    """The installed distributions that own each top-level name.

    `importlib.metadata.packages_distributions` takes five times as long: it parses descriptions, and makes a path for
    each file. Before Python 3.12 it does not know extension modules.
    """
    owners: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        tops = _top_level_names(distribution)
        text = (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "") if tops else ""
        if (name := _NAME.search(text.partition("\n\n")[0])) is not None:
            for top in tops:
                owners.setdefault(top, []).append(name.group(1))
    return owners


def _top_level_names(distribution: Distribution) -> set[str]:
    declared = set((distribution.read_text("top_level.txt") or "").split())
    if declared:
        return declared
    record = distribution.read_text("RECORD")
    if record is None:
        record = "".join(f"{file},\n" for file in distribution.files or ())
    return set(_TOP_LEVEL_NAME.findall(record))


def environment() -> str:
    """A digest of all installed distributions but the driver, by version and by the digests of their files.

    A package may ask whether another one is installed, and which version it has: by an import that may fail, by entry
    points, by `importlib.metadata`. The key of a program does not hold that, since it is the same wherever the program
    is built. So the local cache compares what is installed.
    """
    digests = set()
    for distribution in importlib.metadata.distributions(path=search_path()):
        metadata = _metadata(distribution)
        if metadata.name.startswith("etbuild-"):  # keys hold the files of the driver that a step runs
            continue
        sha256 = _by_record.get(metadata)
        if sha256 is None:
            # The files that are left out hold the directory of an editable project.
            sha256 = _digest([row for row in _rows(distribution) or () if not row.startswith("__editable__")])
        digests.add(f"{metadata.name} {sha256}")
    return _digest(list(digests))


def _metadata(distribution: Distribution) -> Path:
    """The directory with the metadata of a distribution. Its name holds the version."""
    return Path(str(getattr(distribution, "_path", distribution.locate_file(""))))


@functools.cache
def check_unedited(name: str, imported: frozenset[str] = frozenset()) -> None:
    """Checks that the files of a distribution match its RECORD, because the key is made from the RECORD.

    Compares sizes; also compares digests of files that are younger than the RECORD, which installers write last. If
    there is no file of that name, as in an archive, compares all digests. Ignores missing files: they cannot be
    imported. Ignores top-level directories such as `tests` that no source imports: packages overwrite one another's.

    Args:
        name: The name of the distribution.
        imported: Top-level names that the sources import.

    Raises:
        InputError: A file was changed.
    """
    distribution = importlib.metadata.distribution(name)
    rows = _rows(distribution)
    if rows is None or _is_editable(distribution, rows):
        return  # the key is made from the files themselves
    root = str(distribution.locate_file(""))
    listing = record(name)
    written_at = listing.stat().st_mtime + _INSTALL_SECONDS if listing is not None else -math.inf
    for file, digest, size in csv.reader(rows):
        if file.endswith(_FOR_COMPILERS):
            continue
        path = os.path.join(root, file)  # noqa: PTH118 - there are thousands of files, and pathlib is slower
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        top = file.partition("/")[0]
        if top in OF_DEVELOPERS and top not in imported:
            continue
        same_size = not size or status.st_size == int(size)
        if not same_size or (status.st_mtime > written_at and _record_digest(Path(path)) != digest):
            message = f"`{file}` of the installed package `{name}` was changed after its installation"
            hint = f"reinstall it, or install it as editable; without `{name}-*.dist-info/RECORD` builds hash its files"
            raise InputError.of(message, hint)


def files(name: str) -> list[str]:
    """The paths of the files of a distribution that `check_unedited` looks at."""
    distribution = importlib.metadata.distribution(name)
    root = str(distribution.locate_file(""))
    names = (row[0] for row in csv.reader(_rows(distribution) or ()))
    return [f"{root}/{file}" for file in names if not file.endswith(_FOR_COMPILERS)]


def places() -> list[str]:
    """The directories in which this process finds distributions."""
    return sorted({str(_metadata(each).parent) for each in importlib.metadata.distributions(path=search_path())})


def record(name: str) -> Path | None:
    """The RECORD of a distribution, which each installation writes anew; None if it has none.

    Raises:
        PackageNotFoundError: The distribution is not installed.
    """
    path = _metadata(importlib.metadata.distribution(name)) / "RECORD"  # `files` may lack it
    return path if path.is_file() else None


def _record_digest(path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def startup() -> dict[str, str]:
    """Digests of the code that Python runs when it starts: of each `.pth` file and the modules that it imports.

    Leaves out the files that installers write to find packages. The key covers the content of these packages if they
    are used.
    """
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    files = [path for place in places for path in sorted(Path(place).glob("*.pth")) if not _INSTALLERS.match(path.name)]
    by_file = {}
    for path in files:
        text = path.read_text("utf-8", "replace")
        if any(line.startswith(("import ", "import\t")) for line in text.splitlines()):
            modules = [Path(place) for name in sorted(set(_IMPORTED.findall(text))) for place in _file_of(name)]
            digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in (path, *modules)]
            by_file[path.name] = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return by_file


def _file_of(module: str) -> list[str]:
    """The file of a module, in a list. Empty if the module is part of Python or has no file."""
    spec = None if module in sys.stdlib_module_names else importlib.util.find_spec(module)
    return [spec.origin] if spec is not None and spec.has_location and spec.origin else []


def _rows(distribution: Distribution) -> list[str] | None:
    """The rows of a RECORD for files that can be imported. None if there is no RECORD.

    Leaves out what differs between two installations of one release: bytecode, commands outside the package, and the
    metadata, into which installers write too. The version is in the key next to the digest.
    """
    record = distribution.read_text("RECORD")
    if record is None:
        return None
    return [
        row
        for row in record.splitlines()
        if "sha256=" in row and ".dist-info/" not in row and ".pyc," not in row and not row.startswith("../")
    ]


def _is_editable(distribution: Distribution, rows: list[str]) -> bool:
    """Whether a distribution is edited in place, so that its RECORD only lists files that lead to its modules."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable", False):
        return True
    if not all(".pth," in row for row in rows):  # almost always the first row ends this
        return False
    names = (row.partition(",")[0] for row in rows)
    return any(_names_directory(Path(str(distribution.locate_file(name)))) for name in names)


def _names_directory(path: Path) -> bool:
    """Whether a `.pth` file leads to modules, that is, whether one of its lines is a directory and not an import."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return any(line.strip() and not line.startswith(("#", "import ", "import\t")) for line in lines)


def _files(name: str, distribution: Distribution) -> list[str]:
    """The files of a distribution's modules, each with its digest, in the form of a RECORD's rows. Raises InputError if
    it finds none."""
    files = _files_of_modules(name, distribution)
    rows = [f"{file},{hashlib.sha256(path.read_bytes()).hexdigest()}" for file, path in files]
    if not rows:
        message = f"the package `{name}` is installed without a list of its files, and the build cannot find them"
        raise InputError.of(message, "install it from a wheel: `pip install` without `--editable`")
    return rows


def edited_files(name: str) -> set[Path]:
    """The files that `facts` reads, if the distribution is editable or has no RECORD; otherwise empty."""
    distribution = importlib.metadata.distribution(name)
    rows = _rows(distribution)
    if rows is not None and not _is_editable(distribution, rows):
        return set()
    return {path for _, path in _files_of_modules(name, distribution)}


def _files_of_modules(name: str, distribution: Distribution) -> Iterator[tuple[str, Path]]:
    named = set((distribution.read_text("top_level.txt") or "").split())
    named |= {entry.module.partition(".")[0] for entry in distribution.entry_points}
    named.add(re.sub(r"[-.]", "_", name))
    for module in sorted(named):
        yield from _files_of_module(module)


def _files_of_module(module: str) -> Iterator[tuple[str, Path]]:
    """The files of a top-level module, each with its name inside the module."""
    spec = importlib.util.find_spec(module)
    places = (spec.submodule_search_locations or [spec.origin or ""]) if spec is not None else []
    seen = set()  # an editable package may consist of links to directories, and the links may form a circle
    for place in map(Path, places):
        if place.is_file():
            yield place.name, place
        for directory, below, files in os.walk(place, followlinks=True):
            real = os.path.realpath(directory)
            following = [] if real in seen else sorted(below)
            seen.add(real)
            below[:] = [each for each in following if each != "__pycache__" and not each.startswith(".")]
            for file in files:
                path = Path(directory, file)
                if path.suffix != ".pyc" and path.is_file():
                    yield f"{module}/{path.relative_to(place).as_posix()}", path
