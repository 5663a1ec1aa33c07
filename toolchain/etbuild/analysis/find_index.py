"""How a user names a build: by its index, a directory, one of its artifacts, a manifest, or a key of the cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError, Problem
from etbuild.files import json_file
from etbuild.files.scratch import temporary

if TYPE_CHECKING:
    from etbuild.cache.store import Cache


def read_index(path: Path) -> tuple[Path, dict[str, Any]]:
    """The index that a path leads to, and where it is.

    Args:
        path: An index, a directory that holds one, or an artifact beside it.

    Raises:
        InputError: There is none, or several, or it is damaged.
    """
    try:
        found = _locate(path)
    except OSError as error:  # a name that is too long
        raise InputError([Problem(f"{path.name[:100]}: {error.strerror}")]) from None
    content = json_file.read(found, "an index", "index")
    json_file.check(content["inputs"]["plan"], found, "an index", "plan#plan", ("inputs", "plan"))
    return found, content


def _locate(path: Path) -> Path:
    if path.is_dir():
        found = sorted(path.glob("*.index.json"))
        if len(found) != 1:
            listing = ", ".join(file.name for file in found) or "it has no *.index.json"
            raise InputError([Problem(f"{path}: name one index of the directory", hint=f"found: {listing}")])
        return found[0]
    if path.suffix in (".pte", ".ptd"):
        beside = path.with_name(f"{path.name.partition('.')[0]}.index.json")
        if not beside.exists():
            raise InputError([Problem(f"{path}: its index {beside.name} is not beside it")])
        return beside
    if not path.exists():
        raise InputError([Problem(f"{path}: no such file or directory")])
    return path


def index_of_key(key: str, cache: Cache) -> dict[str, Any]:
    """The index of a program in the cache.

    Raises:
        InputError: The cache does not have it.
    """
    with temporary("index") as scratch:
        names = cache.fetch("program", key, scratch.path)
        if names is None:
            raise InputError([Problem(f"{key}: no program of this key in the cache {cache.directory}")])
        return read_index(scratch.path)[1]


def is_key(text: str) -> bool:
    """Whether a text is a whole key."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None
