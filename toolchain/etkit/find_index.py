"""Finds the index of the build that a user names by an index, a directory, an artifact, or a key of the cache."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etbuild.files import json_file, regular_files
from etbuild.files.digests import file_digest
from etbuild.files.scratch import temporary

if TYPE_CHECKING:
    from etbuild.results import Index, Report
    from etkit.local.cache.store import Cache

_ARTIFACTS = (".pte", ".ptd")


def read_index(path: Path) -> tuple[Path, Index]:
    """Finds and reads an index.

    Args:
        path: An index, a directory with one index, or an artifact in the same directory as its index.

    Returns:
        The path of the index and its content.

    Raises:
        InputError: There is no index or more than one, or the index is damaged.
    """
    try:
        index_path = _locate(path)
    except OSError as error:  # a name that is too long
        raise InputError.of(f"{path.name[:100]}: {error.strerror}") from None
    content: Index = json_file.read(index_path, json_file.Format("an index", "index"))
    of_plan = json_file.Format("an index", "plan#plan")
    json_file.check(content["inputs"]["plan"], index_path, of_plan, ("inputs", "plan"))
    return index_path, content


def index_of(path: Path) -> Index:
    """Like `read_index`, but returns only the content, and an artifact must have the bytes that the index lists.

    Raises:
        InputError: As `read_index`, or the artifact has other content.
    """
    index_path, index = read_index(path)
    if path.suffix in _ARTIFACTS:
        try:
            sha256 = file_digest(path)
        except OSError as error:
            raise InputError.of(f"{path}: {error.strerror}") from None
        if all(each["sha256"] != sha256 for each in index["artifacts"]):
            raise InputError.of(f"{path}: has other content than {index_path.name} says", "build again")
    return index


def _locate(path: Path) -> Path:
    if path.is_dir():
        indexes = sorted(path.glob("*.index.json"))
        if len(indexes) != 1:
            listing = ", ".join(file.name for file in indexes) or "it has no *.index.json"
            raise InputError.of(f"{path}: name one index of the directory", f"found: {listing}")
        return indexes[0]
    if path.suffix in _ARTIFACTS:
        name = path.stem if path.suffix == ".pte" else path.stem.rpartition(".")[0]  # NAME.pte or NAME.TAG.ptd
        beside = path.with_name(f"{name or path.stem}.index.json")
        if not beside.exists():
            raise InputError.of(f"{path}: its index {beside.name} is not in the same directory")
        return beside
    if not path.exists():
        raise InputError.of(f"{path}: no such file or directory")
    if path.suffix in (".yaml", ".yml"):
        raise InputError.of(f"{path}: a manifest, not an index", "build it, and name its index or the directory")
    return path


def index_beside(path: Path, sha256: str) -> tuple[Path, Index] | None:
    """The index beside a program, if there is one that lists these bytes."""
    try:
        found = read_index(path)
    except InputError:
        return None
    return found if any(each["sha256"] == sha256 for each in found[1]["artifacts"]) else None


def listed_report(path: Path, index: Index) -> Report | None:
    """The report that an index lists. None if it is not in the same directory, or was changed.

    Args:
        path: The index, or a file beside it.
        index: Its content.

    Raises:
        InputError: The file is not a report.
    """
    for artifact in index["artifacts"]:
        file = regular_files.beside(path, artifact["file"]) if artifact["kind"] == "report" else None
        if file is None:
            continue
        with contextlib.suppress(OSError):
            data = regular_files.read(file, json_file.MAX_BYTES)
            if hashlib.sha256(data).hexdigest() == artifact["sha256"]:
                report: Report = json_file.content(data, file, json_file.Format("a report", "report"))
                return report
    return None


def report_beside(path: Path, sha256: str) -> Report | None:
    """The report beside a `.pte` or `.ptd`, if an index there lists both with these bytes.

    Args:
        path: The file.
        sha256: Its digest.
    """
    index = index_beside(path, sha256)
    with contextlib.suppress(InputError):
        return None if index is None else listed_report(*index)
    return None


def index_of_key(key: str, cache: Cache) -> Index:
    """Reads the index of a program from the cache.

    Raises:
        InputError: The cache does not have it.
    """
    with temporary("index") as scratch:
        names = cache.fetch("program", key, scratch.path)
        if names is None:
            raise InputError.of(f"{key}: the cache {cache.directory} has no program with this key")
        return read_index(scratch.path)[1]


def is_key(text: str) -> bool:
    """Returns whether a text is a complete key: 64 hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None
