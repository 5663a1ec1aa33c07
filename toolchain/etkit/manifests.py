"""The manifests that a command names: files, and all those in folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from etbuild.errors import InputError


def each_manifest(paths: Sequence[Path]) -> list[Path]:
    """The manifests that a command names, and those in the folders that it names; each of them once.

    Raises:
        InputError: A folder has no manifest.
    """
    return [*dict.fromkeys(each for path in paths for each in (_in_folder(path) if _is_folder(path) else [path]))]


def may_be_several(paths: Sequence[Path]) -> bool:
    """Whether a command names several manifests, or a folder, which counts as several."""
    return len(paths) > 1 or any(map(_is_folder, paths))


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises if it has no permission to look


def _in_folder(directory: Path) -> list[Path]:
    """The manifests in a directory and in those below it, sorted: the YAML files with the `schema` of manifests.

    Raises:
        InputError: The directory has none.
    """
    found = []
    for path in sorted([*directory.rglob("*.yaml"), *directory.rglob("*.yml")]):
        hidden = any(part.startswith((".", "bazel-", "buck-out")) for part in path.relative_to(directory).parts)
        if not hidden and path.is_file() and b"executorch-model/v" in path.read_bytes()[:65536]:
            found.append(path)
    if not found:
        raise InputError.of(f"{directory}: no manifest in it", "a manifest has `schema: executorch-model/v1`")
    return found
