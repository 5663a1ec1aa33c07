"""Counts, checks and removes the entries of the local cache.

Only files that the cache has made are removed. A link is removed, not what it leads to.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from etbuild.errors import BuildError
from etbuild.files import locks
from etbuild.files.scratch import sweep
from etkit.local.cache import entries
from etkit.local.cache.entries import Damaged, Unreadable, reason
from etkit.local.cache.store import GC, Cache


@dataclass(frozen=True)
class Info:
    """The contents of a cache: the number of records by step, the number of blobs, and the bytes of both."""

    directory: Path
    records: dict[str, int]
    blobs: int
    size: int


@dataclass(frozen=True)
class Removed:
    """The result of garbage collection: how many records and blobs were removed, the bytes that this freed, and the
    bytes that are left."""

    records: int
    blobs: int
    freed: int
    size: int


def info(cache: Cache) -> Info:
    """Counts the records and blobs and their bytes.

    Raises:
        BuildError: The cache cannot be read.
    """
    with _locked(cache, fcntl.LOCK_SH):
        records, blobs = entries.find(cache.directory, "records"), entries.find(cache.directory, "blobs")
        steps = Counter(path.parts[-3] for path in records)
        return Info(cache.directory, dict(sorted(steps.items())), len(blobs), sum(_sizes(records + blobs).values()))


def verify(cache: Cache) -> list[str]:
    """Reads all entries and drops the damaged ones.

    Returns:
        A message for each entry that is damaged or cannot be read.

    Raises:
        BuildError: The cache cannot be read.
    """
    damaged: list[str] = []
    with _locked(cache, fcntl.LOCK_SH):
        for kind, check in (("blobs", entries.check_blob), ("records", partial(entries.check_record, cache.directory))):
            for path in entries.find(cache.directory, kind):
                try:
                    check(path)
                except FileNotFoundError:
                    pass  # another process has dropped it meanwhile
                except (OSError, Damaged, Unreadable) as error:
                    damaged.append(cache.refuse(path, error))
    return damaged


def gc(cache: Cache, max_size: int) -> Removed:
    """Removes the least recently used records until the cache fits, then blobs that no record lists.

    It waits until no process reads or writes an entry. Processes that want to do so meanwhile wait.

    Args:
        cache: The cache.
        max_size: The limit for records and blobs together, in bytes.

    Raises:
        BuildError: A record cannot be read, so the blobs that it needs are unknown; or a file cannot be removed.
    """
    with _locked(cache, fcntl.LOCK_EX):
        found, blobs = entries.find(cache.directory, "records"), entries.find(cache.directory, "blobs")
        sweep(cache.unfinished)
        for path in entries.find(cache.directory, "locks"):
            with contextlib.suppress(OSError), locks.locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, locks.LOCK_FILE):
                path.unlink()
        before = _sizes(found + blobs)
        kept, removed = _choose([record for path in found for record in _read(cache, path)], before, max_size)
        used = {path for record in kept for path in record.blobs}
        unused = [path for path in blobs if path not in used]
        for path in [*(record.path for record in removed), *unused]:
            path.unlink(missing_ok=True)
        left = sum(_sizes(list(before)).values())
        return Removed(len(removed), len(unused), sum(before.values()) - left, left)


@dataclass(frozen=True)
class _Record:
    """What garbage collection needs of a record: when it was used last (ns), its own size in bytes, and its blobs."""

    path: Path
    used: int
    size: int
    blobs: set[Path]


def _read(cache: Cache, path: Path) -> Iterator[_Record]:
    """Yields nothing for a damaged record, which is dropped."""
    try:
        blobs = {entries.blob_path(cache.directory, entry.sha256) for entry in entries.read_record(path)}
        status = path.stat()
        yield _Record(path, status.st_mtime_ns, status.st_size, blobs)
    except Damaged as error:
        cache.report(cache.refuse(path, error))


def _choose(records: list[_Record], sizes: dict[Path, int], max_size: int) -> tuple[list[_Record], list[_Record]]:
    """Returns the records to keep, which are the most recently used ones that fit, and the records to remove."""
    kept: list[_Record] = []
    removed: list[_Record] = []
    held: set[Path] = set()
    total = 0
    for record in sorted(records, key=lambda record: (-record.used, record.path)):
        cost = record.size + sum(sizes.get(path, 0) for path in record.blobs - held)
        if not removed and total + cost <= max_size:
            kept.append(record)
            held |= record.blobs
            total += cost
        else:
            removed.append(record)
    return kept, removed


def _sizes(paths: Sequence[Path]) -> dict[Path, int]:
    """Returns the sizes of files in bytes, by path. Leaves out those that another process has removed."""
    by_path = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            by_path[path] = path.lstat().st_size
    return by_path


@contextlib.contextmanager
def _locked(cache: Cache, kind: int) -> Iterator[None]:
    """Holds the lock of garbage collection. Errors of the system become a BuildError."""
    try:
        with cache.locked(GC, kind):
            yield
    except OSError as error:
        where = f" {error.filename}:" if error.filename else ""
        raise BuildError.of(f"{cache.directory}:{where} {reason(error)}") from error
