"""Directories by descriptor. A name is looked up in the directory that was opened, and no link is followed.

A path is looked up again each time it is used. A user who can put a link into one of its directories decides where it
leads, even between a check and a use. What removes or replaces files of a directory that others can write to goes by
`Folder`.
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
# Looks names up, which needs no right to list them: a directory of temporary files may be writable and not readable.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe does not block, and is refused as all that is no file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}


class NotAFile(OSError):
    """A link or a directory is where a file has to be."""


class NotAFolder(OSError):
    """A link or a file is where a directory has to be."""


class NoLocks(OSError):
    """A file system that has no locks."""


def lock(descriptor: int, kind: int) -> None:
    """Locks an open file or directory.

    Args:
        descriptor: Of the file.
        kind: As of `fcntl.flock`.

    Raises:
        NoLocks: Its file system has none.
        OSError: It cannot be locked. BlockingIOError: Another process has the lock.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise NoLocks(error.errno, f"the file system has no locks ({error.strerror})") from None
        raise


class Folder:
    """An open directory. To be used as a context, which closes it.

    Args:
        descriptor: Of the directory. It belongs to this object.
        path: For messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def at(cls, path: Path) -> Folder:
        """The directory that a user names, in whose path links are followed.

        Raises:
            OSError: It cannot be opened.
        """
        return cls(os.open(path, _FOLDER), path)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the directory."""
        os.close(self.descriptor)

    def enter(self, name: str) -> Folder:
        """A directory in this one.

        Raises:
            NotAFolder: It is a link or a file.
            OSError: It cannot be opened.
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
        """The directory that holds `a/b/file`, and the file's name in it.

        Raises:
            NotAFolder: A directory on the way is a link or a file.
            OSError: It cannot be opened.
        """
        *parents, name = PurePosixPath(place).parts
        with contextlib.ExitStack() as opened:
            folder = self
            for parent in parents:
                folder = opened.enter_context(folder.enter(parent))
            yield folder, name

    def make_parents(self, place: str) -> None:
        """Makes the directories on the way to `a/b/file`, where they are missing.

        Raises:
            OSError: One cannot be made.
        """
        for parent in reversed(PurePosixPath(place).parents[:-1]):
            with self.holder(parent.as_posix()) as (folder, name), contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder.descriptor)

    def open(self, name: str) -> BinaryIO:
        """A file of this directory, to be read.

        Raises:
            NotAFile: It is no file.
            OSError: It cannot be opened.
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
        """A new file in this directory, to be written.

        Raises:
            OSError: It cannot be made, or is there already.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o666, dir_fd=self.descriptor), "wb")

    def names(self, pattern: re.Pattern[str] | None = None) -> list[str]:
        """What is in this directory, in order.

        Args:
            pattern: Other names are left out.

        Raises:
            OSError: It cannot be listed.
        """
        with self._listed() as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if pattern is None or pattern.fullmatch(entry.name))

    @contextlib.contextmanager
    def locked(self, kind: int) -> Iterator[None]:
        """Holds a lock on this directory.

        Args:
            kind: As of `fcntl.flock`.

        Raises:
            NoLocks: Its file system has none.
            OSError: It cannot be locked. BlockingIOError: Another process has the lock.
        """
        with self._listed() as descriptor:
            lock(descriptor, kind)
            yield

    def status(self, name: str) -> os.stat_result:
        """Of a file, a directory, or a link itself.

        Raises:
            OSError: There is none.
        """
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_folder(self, name: str) -> bool:
        """Whether there is a directory of this name. A link to one is none.

        Raises:
            OSError: Nobody can tell.
        """
        try:
            return stat.S_ISDIR(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def is_still(self, name: str, descriptor: int) -> bool:
        """Whether a name is still that of an open file.

        Raises:
            OSError: Nobody can tell.
        """
        try:
            return os.path.samestat(self.status(name), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def remove(self, name: str) -> None:
        """Removes a file, or a link itself. It may be gone already.

        Raises:
            OSError: It cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_empty(self, name: str) -> None:
        """Removes a directory that holds nothing.

        Raises:
            OSError: Something is in it, or it is none.
        """
        os.rmdir(name, dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Removes a file, a link itself, or a directory with all that is in it.

        However deep that is, at most three descriptors are open at a time.

        Raises:
            OSError: It cannot be removed.
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
        """Removes all that is no directory, and returns the directories."""
        folders = []
        for name in self.names():
            if self.is_folder(name):
                folders.append(name)
            else:
                self.remove(name)
        return folders

    def _go(self, name: str) -> Folder:
        """As `enter`, and closes this one. Keeps the path, which would take long to make at each of many levels."""
        folder = Folder(self._enter(name), self.path)
        self.close()
        return folder

    def _go_up(self, known: os.stat_result) -> Folder:
        """The directory that this one is in, and closes this one.

        Raises:
            OSError: Another process has moved this one meanwhile.
        """
        folder = Folder(os.open("..", _FOLDER, dir_fd=self.descriptor), self.path)
        if not os.path.samestat(os.fstat(folder.descriptor), known):
            folder.close()
            raise OSError(errno.EBUSY, "moved by another process", str(self.path))
        self.close()
        return folder

    def move(self, name: str, target: Folder, new_name: str) -> None:
        """Moves a file or a directory, by one rename. A file of the new name is replaced, and so is a link.

        Raises:
            OSError: It cannot be moved.
        """
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    @contextlib.contextmanager
    def _listed(self) -> Iterator[int]:
        """A descriptor by which this directory can be listed and locked."""
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
    """A directory on the way down a tree that is being removed.

    Attributes:
        name: In the directory above.
        above: What the file system says of the directory above.
        inside: The directories in it that are still there.
    """

    name: str
    above: os.stat_result
    inside: list[str]
