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

The directory itself may be a link. Links inside it are not followed. Files with names that the cache does not use are
kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etbuild.cache import entries
from etbuild.cache.entries import reason
from etbuild.cache.record import Damaged, Entry, Record, Unreadable, write_record
from etbuild.errors import BuildError, InputError
from etbuild.files.directories import Folder, lock
from etbuild.files.scratch import sweep_files


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
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Folder.at(self.directory) as root:
                for kind in entries.KINDS:
                    root.make_parents(f"{kind}/any")
                    root.enter(kind).close()
                with root.enter("tmp") as made:
                    sweep_files(made)
            with self._lock("gc", fcntl.LOCK_SH):
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
        place = entries.record_place(step, key)
        try:
            with self._lock("gc", fcntl.LOCK_SH) as root:
                record = self._read(root, place)
                if record is None:
                    return None
                try:
                    self._copy_out(root, record, directory)
                except (Damaged, Unreadable) as error:
                    self.report(self._refuse(root, place, error))
                    return None
                entries.touch(root, place)
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
            with self._lock("gc", fcntl.LOCK_SH) as root:
                try:
                    entries.copy_out(root, Entry(name, size, sha256), directory)
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
            with self._lock("gc", fcntl.LOCK_SH) as root, Folder.at(directory) as source:
                files = [entries.copy_in(root, source, name) for name in names]
                content = write_record(Record(step, key, files))
                entries.write(root, entries.record_place(step, key), lambda file: file.write(content))
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {reason(error)}")

    def keep_blobs(self, directory: Path, digests: Sequence[str]) -> None:
        """Takes files that a step could not use, so that the next attempt has them. Garbage collection removes them.

        Args:
            directory: The directory with the files.
            digests: The sha256 of each, which is its name too, and which the caller has compared with its content.
        """
        try:
            with self._lock("gc", fcntl.LOCK_SH) as root, Folder.at(directory) as source:
                for sha256 in digests:
                    entries.take(root, source, sha256, sha256)
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
                self.report(f"{self.directory}: no lock could be had: {reason(error)}")
            yield

    def info(self) -> Info:
        """Counts the records and blobs and their bytes.

        Raises:
            BuildError: The cache cannot be read.
        """
        with self._upkeep(fcntl.LOCK_SH) as root:
            places = self._find(root)
            steps = [place.split("/")[1] for place in places["records"]]
            records = {step: steps.count(step) for step in sorted(set(steps))}
            size = sum(entries.sizes(root, places).values())
            return Info(self.directory, records, len(places["blobs"]), size)

    def verify(self) -> list[str]:
        """Reads all entries and drops the damaged ones.

        Returns:
            A message for each entry that is damaged or cannot be read.

        Raises:
            BuildError: The cache cannot be read.
        """
        damaged: list[str] = []
        with self._upkeep(fcntl.LOCK_SH) as root:
            places = self._find(root)
            for kind, check in (("blobs", entries.check_blob), ("records", entries.check_record)):
                for place in places[kind]:
                    try:
                        check(root, place)
                    except FileNotFoundError:
                        pass  # another process has dropped it meanwhile
                    except (OSError, Damaged, Unreadable) as error:
                        damaged.append(self._refuse(root, place, error))
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
        with self._upkeep(fcntl.LOCK_EX) as root:
            places = self._find(root)
            with root.enter("tmp") as tmp:
                sweep_files(tmp)
            for place in places["locks"]:
                if place != "locks/gc":
                    entries.sweep_lock(root, place)
            sizes = entries.sizes(root, places)
            records = [record for place in places["records"] for record in self._sized(root, place)]
            kept, removed = _choose(records, sizes, max_size)
            used = {place for record in kept for place in record.blobs}
            unused = [place for place in places["blobs"] if place not in used]
            for place in [*(record.place for record in removed), *unused]:
                entries.remove(root, place)
            before, after = sum(sizes.values()), sum(entries.sizes(root, places).values())
            return Removed(len(removed), len(unused), before - after, after)

    def _read(self, root: Folder, place: str) -> Record | None:
        """Returns the record at a path. None if it does not exist, is damaged, or cannot be read."""
        try:
            return entries.read(root, place)[0]
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self.report(self._refuse(root, place, error))
            return None

    def _copy_out(self, root: Folder, record: Record, directory: Path) -> None:
        """Copies all blobs of a record. If one cannot be copied, removes the copies that were made."""
        copied: list[str] = []
        try:
            for entry in record.files:
                copied.append(entry.name)
                entries.copy_out(root, entry, directory)
        except BaseException:  # an interrupt as well
            entries.remove_copies(copied, directory)
            raise

    def _refuse(self, root: Folder, place: str, error: Exception) -> str:
        """Drops a damaged entry; keeps an entry that cannot be read now. Returns a message about it."""
        what = f"{self.directory}: {entries.called(place)}"
        if not isinstance(error, Damaged):
            return f"{what} cannot be read and is kept: {reason(error)}"
        try:
            entries.remove(root, place)
        except OSError as obstacle:
            return f"{what} was damaged, and cannot be removed ({reason(obstacle)}): {error}"
        return f"{what} was damaged and is removed: {error}"

    def _find(self, root: Folder) -> dict[str, list[str]]:
        """Returns the paths of the cache's files, by kind. Reports files that the cache did not make."""
        ours, others = entries.find(root)
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            listed = ", ".join(map(ascii, others[:3]))
            self.report(f"{self.directory}: not made by the cache, so it is kept: {listed}{more}")
        return ours

    def _sized(self, root: Folder, place: str) -> Iterator[_Sized]:
        """Yields a record with what garbage collection needs. Yields nothing for a damaged record, which is dropped."""
        try:
            record, status = entries.read(root, place)
        except Damaged as error:
            self.report(self._refuse(root, place, error))
        else:
            blobs = {entries.blob_place(entry.sha256) for entry in record.files}
            yield _Sized(place, status.st_mtime_ns, status.st_size, blobs)

    @contextlib.contextmanager
    def _upkeep(self, kind: int) -> Iterator[Folder]:
        """Yields the cache's directory while it holds `locks/gc`: shared, or exclusively for garbage collection."""
        try:
            with self._lock("gc", kind) as root:
                yield root
        except OSError as error:
            where = f" {error.filename}:" if error.filename else ""
            raise BuildError.of(f"{self.directory}:{where} {reason(error)}") from error

    @contextlib.contextmanager
    def _lock(self, name: str, kind: int) -> Iterator[Folder]:
        """Yields the cache's directory while it holds a lock."""
        with Folder.at(self.directory) as root, root.enter("locks") as locks:
            while True:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o600, dir_fd=locks.descriptor)
                try:
                    lock(descriptor, kind)
                    # Garbage collection may have removed the file meanwhile. Then other processes lock a new one.
                    if locks.is_still(name, descriptor):
                        yield root
                        return
                finally:
                    os.close(descriptor)


@dataclass(frozen=True)
class _Sized:
    """A record with what garbage collection needs: when it was used last (ns), its own size in bytes, and its blobs."""

    place: str
    used: int
    size: int
    blobs: set[str]


def _choose(records: list[_Sized], sizes: dict[str, int], max_size: int) -> tuple[list[_Sized], list[_Sized]]:
    """Returns the records to keep, which are the most recently used ones that fit, and the records to remove."""
    kept: list[_Sized] = []
    removed: list[_Sized] = []
    held: set[str] = set()
    total = 0
    for record in sorted(records, key=lambda record: (-record.used, record.place)):
        cost = record.size + sum(sizes.get(place, 0) for place in record.blobs - held)
        if not removed and total + cost <= max_size:
            kept.append(record)
            held |= record.blobs
            total += cost
        else:
            removed.append(record)
    return kept, removed
