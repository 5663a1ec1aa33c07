"""Finds the file that memory is mapped from, so that the kernel can copy its content from file to file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A place in a file."""

    file: Path
    offset: int


def place(address: int, size: int) -> Place | None:
    """The place in a file that memory of this process is mapped from; None if it is not, or if that is unknown.

    The memory may have other content if this process has written to it. So compare a digest.

    Args:
        address: The address of the memory.
        size: Its size in bytes.
    """
    try:
        lines = Path("/proc/self/maps").read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:  # BEGIN-END RIGHTS OFFSET MAJOR:MINOR INODE PATH
        begin, end = (int(number, 16) for number in line[: line.index(b" ")].split(b"-"))
        if begin <= address and address + size <= end:
            _, _, offset, device, inode, *path = line.split(maxsplit=5)
            return _checked(path, device, int(inode), int(offset, 16) + address - begin)
    return None


def _checked(path: list[bytes], device: bytes, inode: int, offset: int) -> Place | None:
    """The place, unless the file has lost its name, or its file system shows other numbers for it."""
    if not path or not path[0].startswith(b"/"):
        return None
    file = Path(os.fsdecode(path[0]))
    major, minor = (int(number, 16) for number in device.split(b":"))
    try:
        status = file.stat()
    except OSError:
        return None
    same = (status.st_dev, status.st_ino) == (os.makedev(major, minor), inode)
    return Place(file, offset) if same else None
