"""The local cache: the results of steps, by key. Processes can share it safely; every entry is verified on read.

    blobs/ab/abcd...             contents, by sha256
    records/STEP/12/1234...      two lines: the sha256 of the second line, and JSON that lists the files of a step
    locks/                       see below
    tmp/                         files that are being written

Blobs and records are written to `tmp` and renamed, so a process may be killed at any time. A record is written after
its blobs, and it is a hit only if every blob still has its digest. A damaged entry is dropped, and the step runs again.
An entry counts as damaged only if its content proves it. If the disk is full or cannot be read now, the entry stays.

Locks are the kernel's (flock), so a killed process releases them. Processes that read or write entries share
`locks/gc`; garbage collection takes it exclusively. So garbage collection removes nothing in use.

The directory itself may be a link. Maintenance follows no links to directories. Files with names that the cache does
not use are kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from etbuild.cache import entries
from etbuild.cache.entries import reason
from etbuild.cache.record import Damaged, Entry, Record, Unreadable, write_record
from etbuild.errors import BuildError, InputError
from etbuild.files import locks
from etbuild.files.scratch import HIDDEN, Scratch, sweep

_GC = "gc"
"""The name of the lock of garbage collection."""


def default_directory() -> Path:
    """Returns `$ETBUILD_CACHE_DIR`, or `etbuild` in the user's cache directory.

    Raises:
        InputError: The home directory cannot be determined.
    """
    named = os.environ.get("ETBUILD_CACHE_DIR")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etbuild"
    except RuntimeError as error:
        raise InputError.of(f"no home directory: {error}", "name one with --cache-dir") from error


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


def _report(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


class Cache:
    """A cache in a directory.

    Args:
        directory: The cache's directory. It is created if it does not exist; only its user can access it.
        report: Called with one line about a damaged entry, or about a cache that cannot be read or written.

    Raises:
        InputError: The directory cannot be used as a cache.
    """

    def __init__(self, directory: Path, report: Callable[[str], None] = _report) -> None:
        self.directory = directory.absolute()
        self.report = report
        self._unfinished = self.directory / entries.UNFINISHED
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for kind in entries.KINDS:
                (self.directory / kind).mkdir(exist_ok=True)
                if (self.directory / kind).is_symlink():
                    raise NotADirectoryError(errno.ENOTDIR, f"`{kind}` is a link")
            sweep(self._unfinished)
            with self._lock(_GC, fcntl.LOCK_SH):
                pass
        except OSError as error:
            message = f"{directory}: cannot be used as a cache: {reason(error)}"
            raise InputError.of(message, "name a directory that you can write to with --cache-dir") from error

    def fetch(self, step: str, key: str, directory: Path) -> list[str] | None:
        """Copies the files of a key into a directory.

        Args:
            step: The name of the step, such as `export`.
            key: The digest of what the step read.
            directory: An existing directory. Files in it with the same names are replaced.

        Returns:
            The names of the files. None if there is no record, or if the record or a blob is damaged or cannot be
            read; then no file of the record is left in the directory. A damaged entry is dropped, other entries
            stay.

        Raises:
            BuildError: The directory cannot be written to. The entry stays.
        """
        path = entries.record_path(self.directory, step, key)
        try:
            with self._lock(_GC, fcntl.LOCK_SH):
                record = self._read(path)
                if record is None:
                    return None
                try:
                    self._copy_out(record, directory)
                except (Damaged, Unreadable) as error:
                    self.report(self._refuse(path, error))
                    return None
                entries.touch(path)
                return [entry.name for entry in record.files]
        except OSError as error:
            self.report(f"{self.directory}: nothing was read: {reason(error)}")
            return None

    def fetch_blob(self, sha256: str, size: int, directory: Path, name: str) -> bool:
        """Copies a blob into a directory, if the cache has it.

        Args:
            sha256: The digest of the content.
            size: Its size in bytes.
            directory: An existing directory. A file with the same name is replaced.
            name: The name of the copy.

        Returns:
            Whether the copy is there. A damaged blob is dropped.

        Raises:
            BuildError: The directory cannot be written to.
        """
        try:
            with self._lock(_GC, fcntl.LOCK_SH):
                try:
                    entries.copy_out(self.directory, Entry(name, size, sha256), directory)
                    return True
                except (Damaged, Unreadable):
                    entries.remove_copies([name], directory)
                    return False
        except OSError as error:
            self.report(f"{self.directory}: nothing was read: {reason(error)}")
            return False

    def store(self, step: str, key: str, directory: Path, names: Sequence[str]) -> None:
        """Stores files as the result of a step. If the cache cannot be written to, this is reported and is not an
        error.

        Args:
            step: The name of the step, such as `export`.
            key: The digest of what the step read.
            directory: The directory with the files.
            names: The files, relative to the directory.
        """
        try:
            with self._lock(_GC, fcntl.LOCK_SH), Scratch(self._unfinished, HIDDEN) as unfinished:
                files = [entries.copy_in(self.directory, directory, name, unfinished.path) for name in names]
                content = write_record(Record(step, key, files))
                path = entries.record_path(self.directory, step, key)
                entries.write(path, lambda file: file.write(content), unfinished.path)
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {reason(error)}")

    def keep_blobs(self, directory: Path, digests: Sequence[str]) -> None:
        """Takes files that a step could not use, so that the next attempt has them. Garbage collection removes them.

        Args:
            directory: The directory with the files.
            digests: The sha256 of each, which is its name too, and which the caller has compared with its content.
        """
        try:
            with self._lock(_GC, fcntl.LOCK_SH), Scratch(self._unfinished, HIDDEN) as unfinished:
                for sha256 in digests:
                    entries.take(self.directory, directory, sha256, unfinished.path)
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {reason(error)}")

    @contextlib.contextmanager
    def building(self, step: str, key: str) -> Iterator[None]:
        """Returns a context manager that only one process at a time can enter for a key. Processes that waited should
        look into the cache again."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._lock(f"{step}-{key}", fcntl.LOCK_EX))
            except OSError as error:  # then two processes may do the same work, and that is all
                self.report(f"{self.directory}: cannot lock it: {reason(error)}")
            yield

    def info(self) -> Info:
        """Counts the records and blobs and their bytes.

        Raises:
            BuildError: The cache cannot be read.
        """
        with self._upkeep(fcntl.LOCK_SH):
            found = self._find()
            steps = Counter(path.parts[-3] for path in found["records"])
            size = sum(entries.sizes(found["records"] + found["blobs"]).values())
            return Info(self.directory, dict(sorted(steps.items())), len(found["blobs"]), size)

    def verify(self) -> list[str]:
        """Reads all entries and drops the damaged ones.

        Returns:
            A message for each entry that is damaged or cannot be read.

        Raises:
            BuildError: The cache cannot be read.
        """
        damaged: list[str] = []
        with self._upkeep(fcntl.LOCK_SH):
            found = self._find()
            checks = {path: partial(entries.check_blob, path) for path in found["blobs"]}
            checks |= {path: partial(entries.check_record, self.directory, path) for path in found["records"]}
            for path, check in checks.items():
                try:
                    check()
                except FileNotFoundError:
                    pass  # another process has dropped it meanwhile
                except (OSError, Damaged, Unreadable) as error:
                    damaged.append(self._refuse(path, error))
        return damaged

    def gc(self, max_size: int) -> Removed:
        """Removes the least recently used records until the cache fits, then blobs that no record lists.

        It waits until no process reads or writes an entry. Processes that want to do so meanwhile wait.

        Args:
            max_size: The limit for records and blobs together, in bytes.

        Raises:
            BuildError: A record cannot be read, so the blobs that it needs are unknown; or a file cannot be
                removed.
        """
        with self._upkeep(fcntl.LOCK_EX):
            found = self._find()
            sweep(self._unfinished)
            for path in found["locks"]:
                if path.name != _GC:
                    entries.sweep_lock(path)
            before = entries.sizes(found["records"] + found["blobs"])
            records = [record for path in found["records"] for record in self._sized(path)]
            kept, removed = _choose(records, before, max_size)
            used = {path for record in kept for path in record.blobs}
            unused = [path for path in found["blobs"] if path not in used]
            for path in [*(record.path for record in removed), *unused]:
                path.unlink(missing_ok=True)
            after = sum(entries.sizes(list(before)).values())
            return Removed(len(removed), len(unused), sum(before.values()) - after, after)

    def _read(self, path: Path) -> Record | None:
        """Returns the record at a path. None if it does not exist, is damaged, or cannot be read."""
        try:
            return entries.read(path)[0]
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self.report(self._refuse(path, error))
            return None

    def _copy_out(self, record: Record, directory: Path) -> None:
        """Copies all blobs of a record. If one cannot be copied, removes the copies that were made."""
        copied: list[str] = []
        try:
            for entry in record.files:
                copied.append(entry.name)
                entries.copy_out(self.directory, entry, directory)
        except BaseException:  # an interrupt as well
            entries.remove_copies(copied, directory)
            raise

    def _refuse(self, path: Path, error: Exception) -> str:
        """Drops a damaged entry; keeps an entry that cannot be read now. Returns a message about it."""
        what = f"{self.directory}: {entries.called(self.directory, path)}"
        if not isinstance(error, Damaged):
            return f"{what} cannot be read and is kept: {reason(error)}"
        try:
            path.unlink(missing_ok=True)
        except OSError as obstacle:
            return f"{what} was damaged, and cannot be removed ({reason(obstacle)}): {error}"
        return f"{what} was damaged and is removed: {error}"

    def _find(self) -> dict[str, list[Path]]:
        """Returns the paths of the cache's files, by kind. Reports files that the cache did not make."""
        found, others = entries.find(self.directory)
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            listed = ", ".join(ascii(path.relative_to(self.directory).as_posix()) for path in others[:3])
            self.report(f"{self.directory}: not made by the cache, so it is kept: {listed}{more}")
        return found

    def _sized(self, path: Path) -> Iterator[_Sized]:
        """Yields a record with what garbage collection needs. Yields nothing for a damaged record, which is dropped."""
        try:
            record, status = entries.read(path)
        except Damaged as error:
            self.report(self._refuse(path, error))
        else:
            blobs = {entries.blob_path(self.directory, entry.sha256) for entry in record.files}
            yield _Sized(path, status.st_mtime_ns, status.st_size, blobs)

    @contextlib.contextmanager
    def _upkeep(self, kind: int) -> Iterator[None]:
        """Holds `locks/gc`: shared, or exclusively for garbage collection."""
        try:
            with self._lock(_GC, kind):
                yield
        except OSError as error:
            where = f" {error.filename}:" if error.filename else ""
            raise BuildError.of(f"{self.directory}:{where} {reason(error)}") from error

    def _lock(self, name: str, kind: int) -> contextlib.AbstractContextManager[None]:
        """Holds a lock. Garbage collection may remove its file meanwhile; then it is made again."""
        return locks.locked(self.directory / "locks" / name, kind, locks.LOCK_FILE)


@dataclass(frozen=True)
class _Sized:
    """A record with what garbage collection needs: when it was used last (ns), its own size in bytes, and its blobs."""

    path: Path
    used: int
    size: int
    blobs: set[Path]


def _choose(records: list[_Sized], sizes: dict[Path, int], max_size: int) -> tuple[list[_Sized], list[_Sized]]:
    """Returns the records to keep, which are the most recently used ones that fit, and the records to remove."""
    kept: list[_Sized] = []
    removed: list[_Sized] = []
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
