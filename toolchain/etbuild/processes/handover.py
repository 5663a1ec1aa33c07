"""The data that a watching process hands to its building process.

Both run the same command. The building process cannot read a pipe that the watching one has read, must not repeat a
note, and need not hash an unchanged file again.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from etbuild.files import digests

_seen: dict[str, str] = {}
"""The data that this process has read from pipes, by path: one character for each byte."""
_given: dict[str, str] = {}
"""The data that the watching process has read from pipes."""
_notes: list[str] = []
"""The notes that this process has printed."""
_told: list[str] = []
"""The notes that the watching process has printed."""


def read(path: Path, limit: int) -> bytes:
    """The beginning of a file that may be a pipe.

    Args:
        path: The file.
        limit: The largest number of bytes.

    Raises:
        OSError: The file cannot be read.
    """
    if str(path) in _given:
        return _given[str(path)].encode("latin-1")
    with path.open("rb") as file:
        data = file.read(limit)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            _seen[str(path)] = data.decode("latin-1")
    return data


def note(text: str) -> None:
    """Prints a note to standard error, unless the watching process has printed it."""
    if text not in _told:
        with suppress(OSError):  # standard error is full or closed
            print(f"note: {text}", file=sys.stderr)
        _notes.append(text)


def give() -> int:
    """The descriptor of a file with all data to hand over."""
    known = [[*state, sha256] for state, sha256 in digests.known().items()]
    descriptor = os.memfd_create("etbuild-handover")
    with os.fdopen(descriptor, "w", closefd=False) as file:
        json.dump([_seen, _notes, known], file)
    return descriptor


def take(descriptor: int) -> None:
    """Takes the data from the watching process. Closes the descriptor."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor) as file:
        seen, notes, known = json.load(file)
    _given.update(seen)
    _told.extend(notes)
    digests.begin_with({digests.FileState(*state): sha256 for *state, sha256 in known})
