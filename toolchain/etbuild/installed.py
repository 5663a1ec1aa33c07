"""Installed distributions as the key holds them: version and content."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from etbuild.errors import InputError, Problem


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
    named = set((distribution.read_text("top_level.txt") or "").split())
    named |= {entry.module.partition(".")[0] for entry in distribution.entry_points}
    named.add(re.sub(r"[-.]", "_", name))
    rows = [
        f"{file},{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for module in sorted(named)
        for file, path in _files_of_module(module)
    ]
    if not rows:
        message = f"the package `{name}` is installed without a list of its files, and they are not found either"
        raise InputError([Problem(message, None, "install it from a wheel: `pip install` without `--editable`")])
    return rows


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
