"""Digests, and the JSON from which they are made."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etbuild.files import regular_files

_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000  # the coarsest file times: those of FAT


class FileState(NamedTuple):
    """The properties of a file that an edit changes.

    No program can set `ctime`, so an edit that restores the size and `mtime` is found too. Not found are: a further
    write through a mapping to a page that the kernel has not yet written back; any edit in the first seconds after
    another one, if the clock of a file server is behind; and changes by a faulty disk.
    """

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> FileState:
        """The state of a file that has this status."""
        return cls(str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def is_settled(self, now: int) -> bool:
        """Whether every edit from `now` (in ns) on changes the times: two edits within one tick give equal times."""
        return max(self.mtime_ns, self.ctime_ns) < now - _SETTLED_NS


_known: list[dict[FileState, str]] = []
"""The digests of files by state, for each active `hashed_once`. The last one counts."""
_handed: dict[FileState, str] = {}
"""The digests that the previous process knew."""


@contextmanager
def hashed_once() -> Iterator[None]:
    """Within this context, a file without changes is read only once, however often its digest is needed."""
    _known.append(known())
    try:
        yield
    finally:
        _known.pop()


def known() -> dict[FileState, str]:
    """The digests that this process knows. A forked process begins with those of its parent."""
    return dict(_known[-1] if _known else _handed)


def begin_with(digests: Mapping[FileState, str]) -> None:
    """Takes over the digests of an earlier process of the same command."""
    _handed.update(digests)


def learn(digests: Mapping[FileState, str]) -> None:
    """Takes over digests that a forked process knows."""
    if _known:
        _known[-1].update(digests)


def learn_written(path: Path, status: os.stat_result, sha256: str) -> None:
    """Notes the digest of a file that this process has written and no other process writes."""
    learn({FileState.of(path, status): sha256})


def file_digest(path: Path) -> str:
    """sha256 of a regular file, in hex.

    Raises:
        OSError: The file cannot be read, or is not a regular file: a device may never end.
    """
    with regular_files.opened(path) as file:
        return open_file_digest(path, file)


def open_file_digest(path: Path, file: BinaryIO) -> str:
    """sha256 of a file that was opened under this path and not yet read, in hex.

    Raises:
        OSError: The file cannot be read.
    """
    began = time.time_ns()
    before = FileState.of(path, os.fstat(file.fileno()))
    if _known and before in _known[-1]:
        return _known[-1][before]
    state = hashlib.sha256()
    while block := file.read(_BLOCK):
        state.update(block)
    if before.is_settled(began) and before == FileState.of(path, os.fstat(file.fileno())):
        learn({before: state.hexdigest()})
    return state.hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, no white space and a final newline. Equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def digest(value: Any) -> str:
    """sha256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
