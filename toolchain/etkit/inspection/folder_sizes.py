"""Adds up the bytes of programs by folder. Files with the same digest count once in a folder, and once in the total."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etbuild.errors import InputError
from etkit.find_index import read_index
from etkit.tables import size, table


@dataclass
class DirectorySizes:
    """The programs of one folder, by name, and the size of each of their files in bytes, by digest."""

    programs: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(self.sizes.values())


def indexes(directory: Path) -> list[tuple[str, Path]]:
    """Finds the indexes below a directory. Returns each with the path of its folder in the directory.

    Raises:
        InputError: The directory is not there, or has no index.
    """
    if not directory.is_dir():
        raise InputError.of(f"{directory}: no such directory")
    found = sorted(
        (os.path.relpath(folder, directory), Path(folder, name))
        for folder, folders, names in os.walk(directory)
        if _leave_out_copies(folders)
        for name in names
        if name.endswith(".index.json")
    )
    if not found:
        raise InputError.of(f"{directory}: no *.index.json is below it", "build the programs first")
    return found


def _leave_out_copies(folders: list[str]) -> bool:
    """Removes the runfiles of executables, which hold copies of programs, from a list. `os.walk` then skips them."""
    folders[:] = [name for name in folders if not name.endswith(".runfiles")]
    return True


def by_folder(programs: Iterable[tuple[str, Path]], depth: int) -> dict[str, DirectorySizes]:
    """Adds up programs.

    Args:
        programs: The folder of each program, such as `apps/team_3/p0123`, and its index.
        depth: How many parts of the folder's path make a group: 2 groups the example under `apps/team_3`.

    Returns:
        The groups by name, sorted. `.` has the programs with no folder.

    Raises:
        InputError: An index is damaged.
    """
    groups: dict[str, DirectorySizes] = {}
    for folder, index in programs:
        content = read_index(index)[1]
        group = groups.setdefault("/".join(folder.split("/")[:depth]) or ".", DirectorySizes())
        group.programs.add(f"{folder}/{content['name']}")
        shipped = (artifact for artifact in content["artifacts"] if artifact["kind"] != "report")
        group.sizes.update({artifact["sha256"]: artifact["size"] for artifact in shipped})
    return dict(sorted(groups.items()))


def as_json(groups: dict[str, DirectorySizes]) -> dict[str, Any]:
    """Returns programs and bytes of each group and of all, as JSON."""
    shared = _shared(groups)
    return {
        "folders": {
            name: {
                "programs": len(group.programs),
                "bytes": group.bytes,
                "shared_bytes": sum(count for digest, count in group.sizes.items() if digest in shared),
            }
            for name, group in groups.items()
        },
        "programs": len({program for group in groups.values() for program in group.programs}),
        "bytes": sum({digest: count for group in groups.values() for digest, count in group.sizes.items()}.values()),
    }


def as_text(groups: dict[str, DirectorySizes]) -> str:
    """Returns the same as a table."""
    content = as_json(groups)
    rows = [("folder", "programs", "size", "also in other folders")]
    for name, facts in content["folders"].items():
        rows.append((name, str(facts["programs"]), size(facts["bytes"]), size(facts["shared_bytes"])))
    return table([*rows, ("all", str(content["programs"]), size(content["bytes"]), "")])


def _shared(groups: dict[str, DirectorySizes]) -> set[str]:
    """The digests of the files that several groups have."""
    seen: set[str] = set()
    shared: set[str] = set()
    for group in groups.values():
        shared |= seen & group.sizes.keys()
        seen |= group.sizes.keys()
    return shared
