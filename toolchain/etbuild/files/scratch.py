"""Directories and files that are removed with the process that made them, however it ends.

Each has a lock that its process holds (flock). The kernel releases the lock when the process is killed. The lock also
works between containers of one machine that share a directory. For a directory, the lock is on a file inside it, which
also shows that the directory is ours. A process that makes something new in a place sweeps it: it removes what has one
of our names and a lock that nobody holds.

A network file system may grant a lock to each machine separately. So a name tells on which machine, and in which boot
of it, it was made. What comes from another boot is removed only if nobody has changed it for a week.

Another process may sweep a new file or directory before it is locked. So its maker checks that it still exists after
locking it, and otherwise makes another one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from etbuild.errors import BuildError
from etbuild.files.directories import Folder, NoLocks, lock

HIDDEN = ".etbuild-"
"""The prefix of directories next to a user's files."""

_MARKER = "made-by-etbuild"
_DIRECTORY = re.compile(r"(?:\.etbuild-|etbuild-[a-z]+-)([0-9a-f]{8})?[a-z0-9_]{8}")
_FILE = re.compile(r"tmp([0-9a-f]{8})?[a-z0-9_]{8}")
_ANOTHER_BOOT_SECONDS = 7 * 24 * 3600  # no build takes this long
_CHILDREN_SECONDS = 1.0
_LOCKED = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


observers: list[Callable[[str, bool], None]] = []
"""Called before this process makes a directory (path, True), and after it has removed one (path, False)."""


def _tell(path: str, exists: bool) -> None:
    for observer in observers:
        observer(path, exists)


class Scratch:
    """A new directory that only this process uses. A `with` statement removes it at the end.

    Args:
        parent: An existing directory. Links in its path are followed.
        prefix: The start of its name: `HIDDEN`, or `etbuild-WORD-`.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        self._parent = Folder.at(parent.absolute())
        try:
            self._busy = _sweep_directories(self._parent, _left_here(self._parent, _DIRECTORY))
            self._folder, self._name, self._lock = _make_directory(self._parent, prefix)
        except BaseException:
            self._parent.close()
            raise
        self.path = self._folder.path
        """The path of the directory."""

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the directory with its content. What cannot be removed is left for another process to sweep.

        Sweeps again the directories that were locked at the start: children of a killed process may have ended since.
        """
        # A model may have closed descriptors of other code, and opened others under the same numbers.
        with contextlib.suppress(OSError):
            if self._parent.is_still(self._name, self._folder.descriptor):
                _remove_directory(self._parent, self._name, self._folder)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        _sweep_directories(self._parent, self._busy)
        if not _is_there(self._parent, self._name):
            _tell(str(self._parent.path / self._name), False)
        for folder in (self._folder, self._parent):
            with contextlib.suppress(OSError):
                folder.close()


def temporary(word: str) -> Scratch:
    """A new directory in the system's directory for temporary files.

    Args:
        word: The purpose of the directory. It becomes part of the name.

    Raises:
        BuildError: The directory cannot be made.
    """
    import tempfile  # importing it takes longer than this module does, and a cache hit makes no temporary file

    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # no directory for temporary files is writable
        raise BuildError.of(str(error.strerror), "name a directory that has room in TMPDIR") from error
    try:
        return Scratch(place, f"etbuild-{word}-")
    except OSError as error:
        raise write_error(place, error) from error


@contextlib.contextmanager
def unfinished(folder: Folder) -> Iterator[tuple[BinaryIO, str]]:
    """A new file to write and then to move, with its name. If it was not moved, it is removed at the end.

    Raises:
        OSError: The file cannot be made.
    """
    while True:
        name = f"tmp{_boot()}{os.urandom(4).hex()}"
        descriptor = _make_locked(folder, name)
        if descriptor is not None:
            break
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, name
    finally:
        folder.remove(name)


def salvage(parent: Path, use: Callable[[Path], object]) -> None:
    """Calls a function with each directory that a killed process has left, before another process sweeps it.

    Args:
        parent: Where the directories are. It may be missing.
        use: Is called with the path of a directory, which nobody else uses meanwhile. Its `OSError`s are ignored.
    """
    with contextlib.suppress(OSError), Folder.at(parent.absolute()) as folder:
        for name in _left_here(folder, _DIRECTORY):
            with contextlib.suppress(OSError), folder.enter(name) as left:
                if os.fstat(left.descriptor).st_uid == os.geteuid():
                    descriptor = _try_lock(left, _MARKER)
                    if descriptor is not None:
                        try:
                            use(left.path)
                        finally:
                            os.close(descriptor)


def remove_left(paths: Iterable[str]) -> None:
    """Removes directories of a process that has ended. Ignores those that cannot be removed.

    The children of that process were killed with it, and may need a moment to end.

    Args:
        paths: Absolute paths of `Scratch` directories.
    """
    for path in map(Path, paths):
        until = time.monotonic() + _CHILDREN_SECONDS
        with contextlib.suppress(OSError), Folder.at(path.parent) as parent:
            while _DIRECTORY.fullmatch(path.name) and _sweep_directories(parent, [path.name]):
                if time.monotonic() > until:
                    break
                time.sleep(0.01)


def sweep_files(folder: Folder) -> None:
    """Removes files of `unfinished` that killed processes have left."""
    for name in _left_here(folder, _FILE):
        remove_unlocked(folder, name)


def remove_unlocked(folder: Folder, name: str) -> None:
    """Removes a file unless a process holds its lock. Does nothing if it cannot be removed."""
    with contextlib.suppress(OSError):
        descriptor = _try_lock(folder, name)
        if descriptor is not None:
            try:
                folder.remove(name)
            finally:
                os.close(descriptor)


def is_unfinished(name: str) -> bool:
    """Whether a name has the form that `unfinished` gives its files."""
    return _FILE.fullmatch(name) is not None


def write_error(path: Path, error: OSError) -> BuildError:
    """The error for a file or directory that cannot be written. It names the directory that the user knows."""
    hidden = [place for place in path.parents if _DIRECTORY.fullmatch(place.name)]
    place = hidden[-1].parent if hidden else path.parent
    where = f"in {place.absolute()}"
    if isinstance(error, FileExistsError) and error.filename == str(path):  # `mkdir` found something else
        kind = "a link to nothing" if path.is_symlink() else "a file"
        return BuildError.of(f"{path}: is {kind}, but has to be a directory", "name another directory, or remove it")
    hint = f"is there room {where}?" if error.errno in (errno.ENOSPC, errno.EDQUOT) else where
    return BuildError.of(f"{path.name or path}: cannot write the file: {error.strerror or error}", hint)


def _make_directory(parent: Folder, prefix: str) -> tuple[Folder, str, int]:
    """A new directory, its name, and the descriptor that holds its lock."""
    while True:
        name = f"{prefix}{_boot()}{os.urandom(4).hex()}"
        _tell(str(parent.path / name), True)
        os.mkdir(name, 0o700, dir_fd=parent.descriptor)
        with contextlib.ExitStack() as failed:
            failed.callback(_remove_if_empty, parent, name)
            try:
                folder = failed.enter_context(parent.enter(name))
                descriptor = _make_locked(folder, _MARKER)
            except FileNotFoundError:
                continue  # another process swept it while it was empty
            if descriptor is not None:
                failed.pop_all()
                return folder, name, descriptor


def _remove_if_empty(parent: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        parent.remove_empty(name)


def _make_locked(folder: Folder, name: str) -> int | None:
    """Makes and locks a new file. Returns its descriptor, or None if another process has swept the file."""
    descriptor = os.open(name, _LOCKED | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder.descriptor)
    try:
        with contextlib.suppress(NoLocks):  # nothing is swept on such a file system
            lock(descriptor, fcntl.LOCK_EX)
        if folder.is_still(name, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


@functools.cache
def _boot() -> str:
    """An identifier of this boot of this machine. Where it is unknown, each process gets its own identifier."""
    try:
        return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:8]
    except OSError:
        return os.urandom(4).hex()


def _left_here(folder: Folder, pattern: re.Pattern[str]) -> list[str]:
    """The names that may be removed if nobody holds their lock. Empty if the directory cannot be listed. The group of
    the pattern is the boot."""
    try:
        return [name for name in folder.names(pattern) if _is_of_this_boot(name, pattern) or _is_old(folder, name)]
    except OSError:
        return []


def _is_of_this_boot(name: str, pattern: re.Pattern[str]) -> bool:
    matched = pattern.fullmatch(name)
    return matched is not None and matched[1] == _boot()


def _is_old(folder: Folder, name: str) -> bool:
    try:
        return time.time() - folder.status(name).st_mtime > _ANOTHER_BOOT_SECONDS
    except OSError:
        return False


def _sweep_directories(parent: Folder, names: list[str]) -> list[str]:
    """Removes directories whose lock nobody holds. Returns those that still exist."""
    for name in names:
        with contextlib.suppress(OSError):  # it is not a directory, is gone already, or belongs to another user
            _sweep_directory(parent, name)
    return [name for name in names if _is_there(parent, name)]


def _is_there(parent: Folder, name: str) -> bool:
    try:
        return parent.is_folder(name)
    except OSError:
        return False


def _sweep_directory(parent: Folder, name: str) -> None:
    with parent.enter(name) as folder:
        if os.fstat(folder.descriptor).st_uid != os.geteuid():
            return
        try:
            descriptor = _try_lock(folder, _MARKER)
        except FileNotFoundError:
            parent.remove_empty(name)  # its process was killed before it made the lock; else it is not ours
            return
        if descriptor is not None:
            try:
                _remove_directory(parent, name, folder)
            finally:
                os.close(descriptor)


def _try_lock(folder: Folder, name: str) -> int | None:
    """Locks a file. Returns its descriptor, or None if another process holds the lock or the file is not ours."""
    descriptor = os.open(name, _LOCKED, dir_fd=folder.descriptor)
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and folder.is_still(name, descriptor):
            return descriptor
    except OSError:
        pass  # a living process holds the lock
    os.close(descriptor)
    return None


def _remove_directory(parent: Folder, name: str, folder: Folder) -> None:
    """Removes a directory. Its lock goes last: if this process is killed, the rest can still be swept."""
    for each in folder.names():
        if each != _MARKER:
            folder.remove_tree(each)
    folder.remove(_MARKER)
    parent.remove_empty(name)
