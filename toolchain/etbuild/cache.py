"""The local cache: what steps made, by what they read. Shared by any number of processes, and believed in nothing.

    blobs/ab/abcd...             contents, by their sha256
    records/STEP/12/1234...      one line with the sha256 of the next one, which lists the files of a step by its key
    locks/                       see below
    tmp/                         what is being written

A blob and a record appear whole, by a rename, so that a process may be killed anywhere. A record is written after its
blobs, and is only a hit if every blob still has its digest: what is damaged is dropped and built again.

Locks are the kernel's (flock), which a killed process gives back. `locks/gc` is shared by all that read or write
entries and exclusive to the collector: it waits for them and they for it, so that it removes nothing in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etbuild.cache_record import DIGEST, Damaged, Entry, Record, read_record, write_record
from etbuild.errors import InputError, Problem

_BLOCK = 1 << 20
_CLONE = 0x40049409  # FICLONE of linux/fs.h


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
            for name in ("blobs", "records", "locks", "tmp"):
                (self.directory / name).mkdir(exist_ok=True)
            with self._lock("gc", fcntl.LOCK_SH):
                pass
        except OSError as error:
            message = f"{directory}: cannot be used as a cache: {error.strerror or error}"
            raise InputError([Problem(message, hint="name a directory of yours with --cache-dir")]) from error

    def read(self, step: str, key: str) -> Record | None:
        """The record of a key, None where there is none. Its blobs are not looked at; a damaged record is dropped."""
        path = self._record_path(step, key)
        try:
            return read_record(path.read_bytes(), step, key)
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as error:
            self._drop(path, f"the record of {step} {key[:16]}", error)
            return None

    def fetch(self, step: str, key: str, directory: Path) -> list[str] | None:
        """Copies the files of a key into a directory.

        Args:
            step: The step.
            key: The digest of what it read.
            directory: An existing directory. What it holds already under these names is replaced.

        Returns:
            The names of the files; None where there is no record, or something of it is damaged. Nothing of the
            record is left in the directory then, and the damaged entry is dropped.
        """
        with self._lock("gc", fcntl.LOCK_SH):
            record = self.read(step, key)
            if record is None:
                return None
            copied: list[Path] = []
            try:
                for entry in record.files:
                    copied.append(directory / entry.name)
                    copied[-1].parent.mkdir(parents=True, exist_ok=True)
                    self._copy_out(entry, copied[-1])
            except (OSError, Damaged) as error:
                for path in copied:
                    _remove_with_empty_parents(path, directory)
                self._drop(self._record_path(step, key), f"the entry of {step} {key[:16]}", error)
                return None
            self._touch(self._record_path(step, key))
            return [entry.name for entry in record.files]

    def store(self, step: str, key: str, directory: Path, names: Sequence[str]) -> None:
        """Keeps files of a directory as what a step made. A cache that cannot be written to is reported, and no error.

        Args:
            step: The step.
            key: The digest of what it read.
            directory: Where the files are.
            names: Their names in it.
        """
        try:
            with self._lock("gc", fcntl.LOCK_SH):
                entries = [self._copy_in(name, directory / name) for name in names]
                content = write_record(Record(step, key, entries))
                self._write(self._record_path(step, key), lambda file: file.write(content))
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {error.strerror or error}")

    @contextlib.contextmanager
    def building(self, step: str, key: str) -> Iterator[None]:
        """Lets one process build a key at a time. Those that waited look into the cache again."""
        with self._lock(f"{step}-{key}", fcntl.LOCK_EX):
            yield

    def info(self) -> Info:
        """What there is."""
        records: dict[str, int] = {}
        for path in self._records():
            step = path.parent.parent.name
            records[step] = records.get(step, 0) + 1
        blobs = list(self._blobs())
        return Info(self.directory, dict(sorted(records.items())), len(blobs), self._size())

    def verify(self) -> list[str]:
        """Reads everything, drops what is damaged, and says what that was."""
        found: list[str] = []
        report, self.report = self.report, found.append
        try:
            with self._lock("gc", fcntl.LOCK_SH):
                for path in sorted(self._blobs()):
                    self._verify_blob(path)
                for path in sorted(self._records()):
                    self._verify_record(path)
        finally:
            self.report = report
        return found

    def gc(self, max_size: int) -> Removed:
        """Removes the least recently used records until the cache fits, then blobs that no record lists.

        Waits until no process reads or writes an entry; those that come meanwhile wait.

        Args:
            max_size: Of records and blobs together, in bytes.
        """
        with self._lock("gc", fcntl.LOCK_EX):
            shutil.rmtree(self.directory / "tmp", ignore_errors=True)
            (self.directory / "tmp").mkdir(exist_ok=True)
            before = self._size()
            records = self._readable_records()
            blobs = {path.name: path for path in self._blobs()}
            sizes = {name: path.stat().st_size for name, path in blobs.items()}
            kept, removed = _choose(records, sizes, max_size)
            for record in removed:
                record.path.unlink(missing_ok=True)
            used = {name for record in kept for name in record.blobs}
            gone = [path for name, path in blobs.items() if name not in used]
            for path in gone:
                path.unlink(missing_ok=True)
            self._sweep_locks()
            size = self._size()
            return Removed(len(removed), len(gone), before - size, size)

    def _record_path(self, step: str, key: str) -> Path:
        assert DIGEST.fullmatch(key), key
        return self.directory / "records" / step / key[:2] / key

    def _blob_path(self, sha256: str) -> Path:
        return self.directory / "blobs" / sha256[:2] / sha256

    def _records(self) -> Iterator[Path]:
        return (path for path in (self.directory / "records").glob("*/*/*"))

    def _blobs(self) -> Iterator[Path]:
        return (path for path in (self.directory / "blobs").glob("*/*"))

    def _size(self) -> int:
        return sum(path.stat().st_size for paths in (self._records(), self._blobs()) for path in paths)

    @contextlib.contextmanager
    def _lock(self, name: str, kind: int) -> Iterator[None]:
        path = self.directory / "locks" / name
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, kind)
                # The collector may have removed the file meanwhile: then others lock another one.
                with contextlib.suppress(FileNotFoundError):
                    if os.fstat(descriptor).st_ino == path.stat().st_ino:
                        yield
                        return
            finally:
                os.close(descriptor)

    def _sweep_locks(self) -> None:
        """Removes the locks of keys that no one builds."""
        for path in (self.directory / "locks").iterdir():
            if path.name == "gc":
                continue
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                pass  # someone builds it
            finally:
                os.close(descriptor)

    def _write(self, target: Path, write: Callable[[Any], object]) -> None:
        """Writes a file whole: elsewhere first, and to the disk before it gets its name."""
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.directory / "tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:  # an interrupt as well
            Path(name).unlink(missing_ok=True)
            raise

    def _copy_in(self, name: str, source: Path) -> Entry:
        sha256 = _file_digest(source)
        size = source.stat().st_size
        target = self._blob_path(sha256)
        if target.exists() and _file_digest(target) == sha256:
            self._touch(target)
            return Entry(name, size, sha256)

        def write(file: Any) -> None:
            with source.open("rb") as opened:
                if not _clone(opened.fileno(), file.fileno()):
                    shutil.copyfileobj(opened, file, _BLOCK)

        self._write(target, write)
        return Entry(name, size, sha256)

    def _copy_out(self, entry: Entry, target: Path) -> None:
        """Copies a blob and checks the copy. No hard link: who edits an output in place would edit the cache."""
        try:
            blob = self._blob_path(entry.sha256).open("rb")
        except FileNotFoundError:
            raise Damaged(f"the blob {entry.sha256[:16]} is missing") from None
        with blob:
            target.unlink(missing_ok=True)
            with target.open("xb") as file:
                sha256, size = _copy_and_digest(blob, file)
        if (sha256, size) != (entry.sha256, entry.size):
            self._blob_path(entry.sha256).unlink(missing_ok=True)
            raise Damaged(f"the blob {entry.sha256[:16]} has another content")

    def _verify_blob(self, path: Path) -> None:
        try:
            if _file_digest(path) != path.name:
                raise Damaged("it has another content")
        except (OSError, Damaged) as error:
            self._drop(path, f"the blob {path.name[:16]}", error)

    def _verify_record(self, path: Path) -> None:
        step, key = path.parent.parent.name, path.name
        try:
            record = read_record(path.read_bytes(), step, key)
            for entry in record.files:
                if not self._blob_path(entry.sha256).exists():
                    raise Damaged(f"the blob {entry.sha256[:16]} is missing")
        except (OSError, Damaged) as error:
            self._drop(path, f"the record of {step} {key[:16]}", error)

    def _drop(self, path: Path, what: str, error: Exception) -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        self.report(f"{self.directory}: {what} was damaged and is dropped: {error}")

    def _touch(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # a cache that cannot be written to can still be read
            os.utime(path)

    def _readable_records(self) -> list[_Sized]:
        found = []
        for path in self._records():
            status = path.stat()
            try:
                files = read_record(path.read_bytes(), path.parent.parent.name, path.name).files
                found.append(_Sized(path, status.st_mtime_ns, status.st_size, {entry.sha256 for entry in files}))
            except Damaged as error:
                self._drop(path, f"the record {path.name[:16]}", error)
        return found


@dataclass(frozen=True)
class _Sized:
    """A record as the collector sees it: when it was used last, its own size, and its blobs."""

    path: Path
    used: int
    size: int
    blobs: set[str]


def _remove_with_empty_parents(path: Path, top: Path) -> None:
    """Removes a file and the directories between it and the top that hold nothing else."""
    path.unlink(missing_ok=True)
    for parent in path.parents[: path.parents.index(top)]:
        with contextlib.suppress(OSError):  # another file is in it, or it is gone already
            parent.rmdir()


def _choose(records: list[_Sized], sizes: dict[str, int], max_size: int) -> tuple[list[_Sized], list[_Sized]]:
    """The records that stay, the most recently used that fit, and those that go."""
    kept: list[_Sized] = []
    removed: list[_Sized] = []
    held: set[str] = set()
    total = 0
    for record in sorted(records, key=lambda record: (-record.used, record.path)):
        cost = record.size + sum(sizes.get(name, 0) for name in record.blobs - held)
        if not removed and total + cost <= max_size:
            kept.append(record)
            held |= record.blobs
            total += cost
        else:
            removed.append(record)
    return kept, removed


def _copy_and_digest(source: Any, target: Any) -> tuple[str, int]:
    """Copies an open file, or clones it where the file system can, and digests what the copy holds."""
    state, size = hashlib.sha256(), 0
    cloned = _clone(source.fileno(), target.fileno())
    while block := source.read(_BLOCK):
        state.update(block)
        size += len(block)
        if not cloned:
            target.write(block)
    return state.hexdigest(), size


def _clone(source: int, target: int) -> bool:
    """Shares the blocks of a file, to be copied when one of the two is written to (Btrfs, XFS)."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def _file_digest(path: Path) -> str:
    from etbuild.inputs import file_digest

    return file_digest(path)
