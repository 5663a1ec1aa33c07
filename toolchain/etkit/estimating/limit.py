"""The memory that processes here may use: that of the machine, or less if a cgroup has a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etkit.tables import size

_ROOT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Limit:
    """So many bytes of memory, and who sets the limit."""

    bytes: int
    of: str

    def __str__(self) -> str:
        return f"{self.of} has {size(self.bytes)}"


def of_this_machine(root: Path = _ROOT, groups: Path = _GROUPS) -> Limit:
    """The smallest limit for this process.

    Args:
        root: Where control groups are mounted.
        groups: The file that names those of this process.
    """
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [Limit(pages, "this machine"), *(Limit(each, "the cgroup here") for each in _of_groups(root, groups))]
    return min(found, key=lambda each: each.bytes)


def _of_groups(root: Path, groups: Path) -> Iterator[int]:
    """The limits of the control groups of this process, of both versions, and of the groups around them."""
    try:
        lines = groups.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            base, file = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            place = base / name.lstrip("/")
            for folder in [place, *place.parents]:
                if folder.is_relative_to(base):
                    yield from _number(folder / file)


def _number(path: Path) -> Iterator[int]:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return
    if text.isdecimal():  # `max` is no limit
        yield int(text)
