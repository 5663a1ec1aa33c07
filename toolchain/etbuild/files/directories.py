"""Directories by descriptor. A name is looked up in the open directory, and no link is followed.

A path is looked up again at each use. A user who can put a link into one of its directories decides where the path
leads, even between a check and a use. So code that removes or replaces files in a directory that others can write to
uses `Folder`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Needs no right to list names, only to look them up: a directory of temporary files may be writable and not readable.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# Opening a pipe does not block. `Folder.open` refuses it, as it refuses everything that is not a file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}


class NotAFile(OSError):
    """There is a link or a directory where a file is needed."""


class NotAFolder(OSError):
    """There is a link or a file where a directory is needed."""


class NoLocks(OSError):
    """The file system has no locks."""


def lock(descriptor: int, kind: int) -> None:
    """Locks an open file or directory.

    Args:
        descriptor: The descriptor of the file.
        kind: The operation, as for `fcntl.flock`.

    Raises:
        NoLocks: The file system has no locks.
        BlockingIOError: Another process has the lock.
        OSError: The file cannot be locked.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise NoLocks(error.errno, f"the file system has no locks ({error.strerror})") from None
        raise


class Folder:
    """An open directory. Use it in a `with` statement, which closes it.

    Args:
        descriptor: The descriptor of the directory. This object closes it.
        path: The path for messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Opens a directory that a user names. Links in its path are followed.

        Raises:
            OSError: The directory cannot be opened.
        """
        return cls(os.open(path, _FOLDER), path)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the directory."""
        os.close(self.descriptor)

    def enter(self, name: str) -> Folder:
        """Opens a directory in this one.

        Raises:
            NotAFolder: The name is that of a link or a file.
            OSError: The directory cannot be opened.
        """
        return Folder(self._enter(name), self.path / name)

    def _enter(self, name: str) -> int:
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotAFolder(*self._wrong_kind(name)) from None
            raise

    @contextlib.contextmanager
    def holder(self, place: str) -> Iterator[tuple[Folder, str]]:
        """For `a/b/file`, opens the directory that holds the file. Gives it with the file's name in it.

        Raises:
            NotAFolder: A directory of the path is a link or a file.
            OSError: A directory cannot be opened.
        """
        *parents, name = PurePosixPath(place).parts
        with contextlib.ExitStack() as opened:
            folder = self
            for parent in parents:
                folder = opened.enter_context(folder.enter(parent))
            yield folder, name

    def make_parents(self, place: str) -> None:
        """Makes the missing directories of the path `a/b/file`.

        Raises:
            OSError: A directory cannot be made.
        """
        for parent in reversed(PurePosixPath(place).parents[:-1]):
            with self.holder(parent.as_posix()) as (folder, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder.descriptor)

    def open(self, name: str) -> BinaryIO:
        """Opens a file of this directory for reading.

        Raises:
            NotAFile: The name is not that of a regular file.
            OSError: The file cannot be opened.
        """
        try:
            descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise NotAFile(*self._wrong_kind(name)) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotAFile(*self._wrong_kind(name))
        return os.fdopen(descriptor, "rb")

    def create(self, name: str) -> BinaryIO:
        """Makes a new file in this directory and opens it for writing.

        Raises:
            OSError: The file cannot be made, or exists already.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o666, dir_fd=self.descriptor), "wb")

    def names(self, pattern: re.Pattern[str] | None = None) -> list[str]:
        """The sorted names in this directory.

        Args:
            pattern: Leaves out names that do not match it completely.

        Raises:
            OSError: The directory cannot be listed.
        """
        with self._listed() as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if pattern is None or pattern.fullmatch(entry.name))

    @contextlib.contextmanager
    def locked(self, kind: int) -> Iterator[None]:
        """Holds a lock on this directory.

        Args:
            kind: The operation, as for `fcntl.flock`.

        Raises:
            NoLocks: The file system has no locks.
            BlockingIOError: Another process has the lock.
            OSError: The directory cannot be locked.
        """
        with self._listed() as descriptor:
            lock(descriptor, kind)
            yield

    def status(self, name: str) -> os.stat_result:
        """The status of a file or a directory. For a link, the status of the link itself.

        Raises:
            OSError: The name does not exist.
        """
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_folder(self, name: str) -> bool:
        """Whether the name is that of a directory. A link to a directory does not count.

        Raises:
            OSError: The status cannot be read.
        """
        try:
            return stat.S_ISDIR(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def is_still(self, name: str, descriptor: int) -> bool:
        """Whether a name still refers to an open file.

        Raises:
            OSError: The status cannot be read.
        """
        try:
            return os.path.samestat(self.status(name), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def remove(self, name: str) -> None:
        """Removes a file, or a link itself. Does nothing if the name does not exist.

        Raises:
            OSError: The file cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Removes an empty directory.

        Raises:
            OSError: The directory is not empty, or the name is not that of a directory.
        """
        os.rmdir(name, dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Removes a file, a link itself, or a directory with its content.

        At most three descriptors are open at a time, however deep the directory is.

        Raises:
            OSError: Something cannot be removed.
        """
        if not self.is_folder(name):
            self.remove(name)
            return
        folder = self.enter(name)
        try:
            way = [_Step(name, os.fstat(self.descriptor), folder._remove_files())]
            while way:
                inside = way[-1].inside
                if inside:
                    inner, above = inside.pop(), os.fstat(folder.descriptor)
                    folder = folder._go(inner)
                    way.append(_Step(inner, above, folder._remove_files()))
                else:
                    folder = folder._go_up(way[-1].above)
                    folder.remove_empty(way.pop().name)
        finally:
            folder.close()

    def _remove_files(self) -> list[str]:
        """Removes everything except directories, and returns the names of the directories."""
        folders = []
        for name in self.names():
            if self.is_folder(name):
                folders.append(name)
            else:
                self.remove(name)
        return folders

    def _go(self, name: str) -> Folder:
        """Enters a directory and closes this one. Keeps the path: making one at each of many levels would take long."""
        folder = Folder(self._enter(name), self.path)
        self.close()
        return folder

    def _go_up(self, known: os.stat_result) -> Folder:
        """Opens the directory above this one, and closes this one. Raises OSError if another process has moved this one
        in the meantime."""
        folder = Folder(os.open("..", _FOLDER, dir_fd=self.descriptor), self.path)
        if not os.path.samestat(os.fstat(folder.descriptor), known):
            folder.close()
            raise OSError(errno.EBUSY, "moved by another process", str(self.path))
        self.close()
        return folder

    def move(self, name: str, target: Folder, new_name: str) -> None:
        """Moves a file or a directory by one rename. Replaces a file or a link that has the new name.

        Raises:
            OSError: The file or directory cannot be moved.
        """
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def link(self, name: str, target: Folder, new_name: str) -> None:
        """Gives a file, or a link itself, a second name. Where the file system has no such names, moves it.

        Raises:
            OSError: The file can neither be linked nor moved.
        """
        try:
            os.link(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:
            self.move(name, target, new_name)

    @contextlib.contextmanager
    def _listed(self) -> Iterator[int]:
        """A descriptor that can be used to list and lock this directory."""
        descriptor = os.open(".", _LISTED, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _wrong_kind(self, name: str) -> tuple[int, str, str]:
        try:
            kind = _KINDS.get(stat.S_IFMT(self.status(name).st_mode), "of another kind")
        except OSError:
            kind = "gone"
        return errno.ELOOP, f"`{name}` is {kind}", str(self.path / name)


@dataclass(frozen=True)
class _Step:
    """A directory on the way down a tree that is being removed: its name in the directory above, the status of the
    latter, and the names of the directories in it that still exist."""

    name: str
    above: os.stat_result
    inside: list[str]
