"""The local cache: what steps made, by what they read. Shared by any number of processes, and believed in nothing.

    blobs/ab/abcd...             contents, by their sha256
    records/STEP/12/1234...      one line with the sha256 of the next one, which lists the files of a step by its key
    locks/                       see below
    tmp/                         what is being written

A blob and a record appear whole, by a rename, so that a process may be killed anywhere. A record is written after its
blobs, and is only a hit if every blob still has its digest: what is damaged is dropped and built again. Damage is what
its content proves. Where a disk is full or cannot be read now, the entry stays.

Locks are the kernel's (flock), which a killed process gives back. `locks/gc` is shared by all that read or write
entries and exclusive to the collector: it waits for them and they for it, so that it removes nothing in use.

The directory may be a link, and no link in it is followed. What is there under a name that the cache does not give is
left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etbuild.cache import entries as cache_files
from etbuild.cache.entries import reason
from etbuild.cache.record import Damaged, Record, Unreadable, write_record
from etbuild.errors import BuildError, InputError, Problem
from etbuild.files.directories import Folder, lock
from etbuild.files.scratch import sweep_files


def default_directory() -> Path:
    """`$ETBUILD_CACHE_DIR`, else `etbuild` in the user's cache directory.

    Raises:
        InputError: There is no home directory to look for it in.
    """
    named = os.environ.get("ETBUILD_CACHE_DIR")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etbuild"
    except RuntimeError as error:
        raise InputError([Problem(f"no home directory: {error}", hint="name one with --cache-dir")]) from error


@dataclass(frozen=True)
class Info:
    """What a cache holds: records by step, blobs, and bytes of both."""

    directory: Path
    records: dict[str, int]
    blobs: int
    size: int


@dataclass(frozen=True)
class Removed:
    """What the collector removed and left."""

    records: int
    blobs: int
    freed: int
    size: int


def _report(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


class Cache:
    """A cache in a directory.

    Args:
        directory: Where it is; made if need be, for its user alone.
        report: Is told in one line what was wrong with an entry, or why nothing could be stored.

    Raises:
        InputError: The directory cannot be used.
    """

    def __init__(self, directory: Path, report: Callable[[str], None] = _report) -> None:
        self.directory = directory.absolute()
        self.report = report
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Folder.at(self.directory) as root:
                for kind in cache_files.KINDS:
                    root.make_parents(f"{kind}/any")
                    root.enter(kind).close()
                with root.enter("tmp") as made:
                    sweep_files(made)
            with self._lock("gc", fcntl.LOCK_SH):
                pass
        except OSError as error:
            message = f"{directory}: cannot be used as a cache: {reason(error)}"
            raise InputError([Problem(message, hint="name a directory of yours with --cache-dir")]) from error

    def fetch(self, step: str, key: str, directory: Path) -> list[str] | None:
        """Copies the files of a key into a directory.

        Args:
            step: The step.
            key: The digest of what it read.
            directory: An existing directory. What it holds already under these names is replaced.

        Returns:
            The names of the files; None where there is no record, or something of it is damaged or cannot be read.
            Nothing of the record is left in the directory then. A damaged entry is dropped, and any other stays.

        Raises:
            BuildError: The directory cannot be written to. The entry stays.
        """
        place = cache_files.record_place(step, key)
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
                cache_files.touch(root, place)
                return [entry.name for entry in record.files]
        except OSError as error:
            self.report(f"{self.directory}: nothing was read: {reason(error)}")
            return None

    def store(self, step: str, key: str, directory: Path, names: Sequence[str]) -> None:
        """Keeps files of a directory as what a step made. A cache that cannot be written to is reported, and no error.

        Args:
            step: The step.
            key: The digest of what it read.
            directory: Where the files are.
            names: Their names in it.
        """
        try:
            with self._lock("gc", fcntl.LOCK_SH) as root, Folder.at(directory) as source:
                entries = [cache_files.copy_in(root, source, name) for name in names]
                content = write_record(Record(step, key, entries))
                cache_files.write(root, cache_files.record_place(step, key), lambda file: file.write(content))
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {reason(error)}")

    @contextlib.contextmanager
    def building(self, step: str, key: str) -> Iterator[None]:
        """Lets one process build a key at a time. Those that waited look into the cache again."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._lock(f"{step}-{key}", fcntl.LOCK_EX))
            except OSError as error:  # then two processes may do the same work, and that is all
                self.report(f"{self.directory}: no lock could be had: {reason(error)}")
            yield

    def info(self) -> Info:
        """What there is.

        Raises:
            BuildError: It cannot be read.
        """
        with self._upkeep(fcntl.LOCK_SH) as root:
            places = self._find(root)
            steps = [place.split("/")[1] for place in places["records"]]
            records = {step: steps.count(step) for step in sorted(set(steps))}
            size = sum(cache_files.sizes(root, places).values())
            return Info(self.directory, records, len(places["blobs"]), size)

    def verify(self) -> list[str]:
        """Reads everything, drops what is damaged, and says what that was, and what cannot be read.

        Raises:
            BuildError: The cache cannot be read.
        """
        found: list[str] = []
        with self._upkeep(fcntl.LOCK_SH) as root:
            places = self._find(root)
            for kind, check in (("blobs", cache_files.check_blob), ("records", cache_files.check_record)):
                for place in places[kind]:
                    try:
                        check(root, place)
                    except FileNotFoundError:
                        pass  # another process has dropped it meanwhile
                    except (OSError, Damaged, Unreadable) as error:
                        found.append(self._refuse(root, place, error))
        return found

    def gc(self, max_size: int) -> Removed:
        """Removes the least recently used records until the cache fits, then blobs that no record lists.

        Waits until no process reads or writes an entry; those that come meanwhile wait.

        Args:
            max_size: Of records and blobs together, in bytes.

        Raises:
            BuildError: A record cannot be read, so that nobody knows which blobs it needs; or a file cannot be removed.
        """
        with self._upkeep(fcntl.LOCK_EX) as root:
            places = self._find(root)
            with root.enter("tmp") as made:
                sweep_files(made)
            for place in places["locks"]:
                if place != "locks/gc":
                    cache_files.sweep_lock(root, place)
            sizes = cache_files.sizes(root, places)
            records = [record for place in places["records"] for record in self._sized(root, place)]
            kept, removed = _choose(records, sizes, max_size)
            used = {place for record in kept for place in record.blobs}
            unused = [place for place in places["blobs"] if place not in used]
            for place in [*(record.place for record in removed), *unused]:
                cache_files.remove(root, place)
            before, after = sum(sizes.values()), sum(cache_files.sizes(root, places).values())
            return Removed(len(removed), len(unused), before - after, after)

    def _read(self, root: Folder, place: str) -> Record | None:
        """The record of a key, None where there is none that can be used."""
        try:
            return cache_files.read(root, place)[0]
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self.report(self._refuse(root, place, error))
            return None

    def _copy_out(self, root: Folder, record: Record, directory: Path) -> None:
        """Copies all blobs of a record. If one cannot be copied, no file of the record is left."""
        copied: list[str] = []
        try:
            for entry in record.files:
                copied.append(entry.name)
                cache_files.copy_out(root, entry, directory)
        except BaseException:  # an interrupt as well
            cache_files.remove_copies(copied, directory)
            raise

    def _refuse(self, root: Folder, place: str, error: Exception) -> str:
        """Drops an entry that is damaged, leaves one that cannot be read now, and says which it was."""
        what = f"{self.directory}: {cache_files.called(place)}"
        if not isinstance(error, Damaged):
            return f"{what} cannot be read, and is left as it is: {reason(error)}"
        try:
            cache_files.remove(root, place)
        except OSError as obstacle:
            return f"{what} was damaged, and cannot be removed ({reason(obstacle)}): {error}"
        return f"{what} was damaged and is dropped: {error}"

    def _find(self, root: Folder) -> dict[str, list[str]]:
        """The places of the cache's files, by kind. Says what else there is."""
        ours, others = cache_files.find(root)
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            listed = ", ".join(map(ascii, others[:3]))
            self.report(f"{self.directory}: not made by the cache, and left alone: {listed}{more}")
        return ours

    def _sized(self, root: Folder, place: str) -> Iterator[_Sized]:
        """A record as the collector sees it; none where it is damaged, and dropped."""
        try:
            record, status = cache_files.read(root, place)
        except Damaged as error:
            self.report(self._refuse(root, place, error))
        else:
            blobs = {cache_files.blob_place(entry.sha256) for entry in record.files}
            yield _Sized(place, status.st_mtime_ns, status.st_size, blobs)

    @contextlib.contextmanager
    def _upkeep(self, kind: int) -> Iterator[Folder]:
        """The cache's directory, while a lock is held against the collector, or by it."""
        try:
            with self._lock("gc", kind) as root:
                yield root
        except OSError as error:
            where = f" {error.filename}:" if error.filename else ""
            raise BuildError([Problem(f"{self.directory}:{where} {reason(error)}")]) from error

    @contextlib.contextmanager
    def _lock(self, name: str, kind: int) -> Iterator[Folder]:
        """The cache's directory, while a lock is held."""
        with Folder.at(self.directory) as root, root.enter("locks") as locks:
            while True:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o600, dir_fd=locks.descriptor)
                try:
                    lock(descriptor, kind)
                    # The collector may have removed the file meanwhile: then others lock another one.
                    if locks.is_still(name, descriptor):
                        yield root
                        return
                finally:
                    os.close(descriptor)


@dataclass(frozen=True)
class _Sized:
    """A record as the collector sees it: when it was used last, its own size, and its blobs."""

    place: str
    used: int
    size: int
    blobs: set[str]


def _choose(records: list[_Sized], sizes: dict[str, int], max_size: int) -> tuple[list[_Sized], list[_Sized]]:
    """The records that stay, the most recently used that fit, and those that go."""
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
