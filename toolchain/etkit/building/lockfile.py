"""Lockfiles: checked-in files with the digests of a program's artifacts. A test fails if the program changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from etbuild.errors import CheckError, InputError, format_path
from etbuild.files import json_file, regular_files
from etbuild.files.json_diff import ABSENT, Change, changes
from etbuild.publishing import artifacts
from etbuild.results import Index
from etkit.inspection.json_text import show
from etkit.tables import size

_SCHEMA = "executorch-lock/v1"


class LockedArtifact(TypedDict):
    """The size in bytes and the digest of an artifact."""

    size: int
    sha256: str


class Lockfile(TypedDict):
    """A lockfile: the artifacts that are shipped, by file, and the versions that made them."""

    schema: str
    name: str
    versions: dict[str, str]
    methods: list[str]
    constant_methods: list[str]
    artifacts: dict[str, LockedArtifact]


def lock(index: Index) -> Lockfile:
    """Returns the content of a build's lockfile: the artifacts that are shipped, and the versions that made them.

    The report is left out, because a check or a report option changes it without changing what is shipped.
    """
    return {
        "schema": _SCHEMA,
        "name": index["name"],
        # The local part of a version (`2.13.0+cpu`) does not change the bytes.
        "versions": {name: version.partition("+")[0] for name, version in index["versions"].items()},
        "methods": index["methods"],
        "constant_methods": index["constant_methods"],
        "artifacts": {
            artifact["file"]: {"size": artifact["size"], "sha256": artifact["sha256"]}
            for artifact in index["artifacts"]
            if artifact["kind"] != "report"
        },
    }


def encoded(locked: Lockfile) -> bytes:
    """A lockfile as indented JSON, so that people can review it."""
    return json.dumps(locked, indent=2, sort_keys=True).encode() + b"\n"


def write(path: Path, locked: Lockfile) -> None:
    """Writes a lockfile. Replaces an old one, even if a merge, for example, has damaged it.

    Raises:
        BuildError: The file cannot be written.
        InputError: The file holds something else.
    """
    if not _may_be_replaced(path):
        raise InputError.of(f"{path}: is not a lockfile, so it is not replaced", "name the lockfile after the index")
    artifacts.replace(path, encoded(locked))


def _may_be_replaced(path: Path) -> bool:
    """Whether a file is a lockfile, was one, is empty, or is missing."""
    try:
        data = regular_files.read(path, json_file.MAX_BYTES)
    except OSError:  # writing will show whether the path can be written
        return not path.is_file()
    return not data.strip() or b"executorch-lock/" in data


def check(path: Path, content: Lockfile, hint: str) -> None:
    """Compares a lockfile with a build.

    Args:
        path: The lockfile.
        content: The content that the lockfile should have.
        hint: How the user can update the lockfile.

    Raises:
        CheckError: The lockfile has another program or does not exist. The message lists the changes, and the changed
            versions of the packages that made the program.
        InputError: The file is not a lockfile.
    """
    if not path.exists():
        raise CheckError.of(f"{path.name}: there is no lockfile yet", hint)
    form = json_file.Format("a lockfile", "lock", hint if _may_be_replaced(path) else "name another file")
    locked = json_file.read(path, form)
    differing = [*_merged(changes(locked, content))]
    # Other versions are no difference by themselves: a lockfile stays valid after an upgrade that changes no byte.
    if any(change.path[0] != "versions" for change in differing):
        lines = [_line(change) for change in differing]
        message = f"{path.name}: the program differs from the lockfile:"
        raise CheckError.of("\n".join([message, *(f"    {line}" for line in lines)]), f"if this is intended: {hint}")


def _merged(differing: Iterator[Change]) -> Iterator[Change]:
    """Reduces the changes of each artifact to one. The size is preferred, since it says more than the digest."""
    seen = set()
    for change in sorted(
        differing, key=lambda change: (change.path[0] == "artifacts", change.path[:2], change.path[-1] != "size")
    ):
        if change.path[:2] not in seen or change.path[0] != "artifacts":
            yield change
        seen.add(change.path[:2])


def _line(change: Change) -> str:
    if change.path[0] == "artifacts":
        return f"{change.path[1]}: {_artifact(change)}"
    return f"{format_path(change.path)}: {show(change.before)} -> {show(change.after)}"


def _artifact(change: Change) -> str:
    before, after = change.before, change.after
    if before is ABSENT:
        return f"added, {size(after['size'])}"
    if after is ABSENT:
        return f"removed, {size(before['size'])}"
    if change.path[-1] == "size":
        return f"{size(before)} -> {size(after)} ({after - before:+,} bytes)"
    return f"the same size, other content: {show(before)} -> {show(after)}"
