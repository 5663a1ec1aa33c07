"""The local cache: the results of steps, by key. Processes can share it safely; every entry is verified on read.

    blobs/ab/abcd...             contents, by sha256
    records/STEP/12/1234...      two lines: the sha256 of the second line, and JSON that lists the files of a step
    locks/                       see below
    tmp/                         files that are being written

Blobs and records are written to `tmp` and renamed, so a process may be killed at any time. A record is written after
its blobs, and it is a hit only if every blob still has its digest. A damaged entry is dropped, and the step runs again.
An entry counts as damaged only if its content is wrong. If the disk is full or cannot be read now, the entry stays.

Locks are the kernel's (flock), so a killed process releases them. Processes that read or write entries share
`locks/gc`; garbage collection takes it exclusively. So garbage collection removes nothing in use.

The directory itself may be a link. `etkit.building.cache_upkeep` counts, checks and removes entries.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from etbuild.errors import InputError
from etbuild.files import locks
from etbuild.files.scratch import HIDDEN, Scratch, sweep
from etkit.local.cache import entries
from etkit.local.cache.entries import Damaged, Entry, Unreadable, reason
from etkit.local.cache.owners import others_that_write

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
GC = "gc"
"""The name of the lock of garbage collection."""


def _report(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


class Cache:
    """A cache in a directory.

    Args:
        directory: The cache's directory. It is created if it does not exist; only its user can access it. If it cannot
            be written to, nothing is stored.
        report: Called with one line about a damaged entry, or about a cache that cannot be read or written.

    Raises:
        InputError: The directory cannot be used as a cache, or other users can write to it.
    """

    def __init__(self, directory: Path, report: Callable[[str], None] = _report) -> None:
        self.directory = directory.absolute()
        self.report = report
        self.unfinished = self.directory / entries.UNFINISHED
        self._read_only: str | None = None  # the reason why nothing can be written
        self._told = False  # whether this was reported
        try:
            self._make()
        except OSError as error:
            readable = os.access(self.directory / "records", os.R_OK | os.X_OK, effective_ids=True)
            if error.errno not in _READ_ONLY or not readable:
                message = f"{directory}: cannot be used as a cache: {reason(error)}"
                raise InputError.of(message, "name a directory that you can write to with --cache-dir") from error
            self._read_only = reason(error)
        self._check_owners()

    def _make(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for kind in entries.KINDS:
            (self.directory / kind).mkdir(exist_ok=True)
            if (self.directory / kind).is_symlink():  # files behind a link are not the cache's to remove
                raise NotADirectoryError(errno.ENOTDIR, f"`{kind}` is a link")
        sweep(self.unfinished)
        with self.locked(GC, fcntl.LOCK_SH):
            pass

    def _check_owners(self) -> None:
        """Refuses a cache into which other users can put programs of their own."""
        enter = self.directory.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
        for directory in (self.directory, *(self.directory / kind for kind in entries.KINDS if enter)):
            found = others_that_write(directory) if directory.is_dir() else None
            if found is not None:
                message = f"{directory}: cannot be used as a cache: {found[0]}"
                raise InputError.of(message, f"`{found[1]}`, or name another directory with --cache-dir")

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
        names: list[str] = []
        try:
            with self.locked(GC, fcntl.LOCK_SH):
                for entry in entries.read_record(path):
                    names.append(entry.name)
                    entries.copy_out(self.directory, entry, directory)
                entries.touch(path)
            return names
        except FileNotFoundError:
            return None
        except BaseException as error:  # an interrupt as well
            entries.remove_copies(names, directory)
            if not isinstance(error, (Damaged, Unreadable, OSError)):
                raise
            self.report(self.refuse(path, error))
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
            with self.locked(GC, fcntl.LOCK_SH):
                entries.copy_out(self.directory, Entry(name, size, sha256), directory)
            return True
        except (Damaged, Unreadable, OSError):
            entries.remove_copies([name], directory)
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

        def write(unfinished: Path) -> None:
            files = [entries.copy_in(self.directory, directory, name, unfinished) for name in names]
            entries.write_record(self.directory, step, key, files, unfinished)

        self._store(write)

    def keep_blobs(self, directory: Path, digests: Sequence[str]) -> None:
        """Takes files that a step could not use, so that the next attempt has them. Garbage collection removes them.

        Args:
            directory: The directory with the files.
            digests: The sha256 of each, which is its name too, and which the caller has compared with its content.
        """

        def write(unfinished: Path) -> None:
            for sha256 in digests:
                entries.move_in(self.directory, directory, sha256, unfinished)

        self._store(write)

    def _store(self, write: Callable[[Path], None]) -> None:
        """Calls a function with a directory for files that are not complete. Reports errors of the system."""
        if self._read_only is not None:
            self._tell_read_only()
            return
        try:
            with self.locked(GC, fcntl.LOCK_SH), Scratch(self.unfinished, HIDDEN) as unfinished:
                write(unfinished.path)
        except OSError as error:
            self.report(f"{self.directory}: nothing was stored: {reason(error)}")

    @contextlib.contextmanager
    def building(self, step: str, key: str) -> Iterator[None]:
        """Returns a context manager that only one process at a time can enter for a key. Processes that waited should
        look into the cache again."""
        self._tell_read_only()
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self.locked(f"{step}-{key}", fcntl.LOCK_EX))
            except OSError as error:  # without the lock, two processes may do the same work, but nothing breaks
                self.report(f"{self.directory}: cannot lock it: {reason(error)}")
            yield

    def refuse(self, path: Path, error: BaseException) -> str:
        """Drops a damaged record or blob; keeps one that cannot be read now. Returns a message about it."""
        kind, step, *_ = path.relative_to(self.directory).parts
        name = f"the blob {path.name[:16]}" if kind == "blobs" else f"the record of {step} {path.name[:16]}"
        what = f"{self.directory}: {name}"
        if not isinstance(error, Damaged):
            return f"{what} cannot be read and is kept: {reason(error)}"
        try:
            path.unlink(missing_ok=True)
        except OSError as obstacle:
            return f"{what} was damaged, and cannot be removed ({reason(obstacle)}): {error}"
        return f"{what} was damaged and is removed: {error}"

    def _tell_read_only(self) -> None:
        """Reports that nothing can be stored, once and before processes fork."""
        if self._read_only is not None and not self._told:
            self.report(f"{self.directory}: nothing can be stored: {self._read_only}")
        self._told = True

    @contextlib.contextmanager
    def locked(self, name: str, kind: int) -> Iterator[None]:
        """Holds a lock. Garbage collection may remove its file meanwhile; then it is made again. In a read-only cache
        there is no lock: an entry that is removed meanwhile is a miss."""
        path, read_only = self.directory / "locks" / name, self._read_only is not None
        with contextlib.ExitStack() as held:
            with contextlib.suppress(*(OSError,) if read_only else ()):
                held.enter_context(locks.locked(path, kind, os.O_RDONLY if read_only else locks.LOCK_FILE))
            yield
