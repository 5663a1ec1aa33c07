"""Directories that are removed with the process that made them, however it ends.

The process holds a lock on its directory (flock), which the kernel releases when the process is killed. The lock also
works between containers of one machine that share a directory. A process that makes something new in a place sweeps the
place: it removes directories that have one of our names and a lock that no process holds.

A network file system may grant a lock to each machine separately, or have no locks. So a directory's name tells in
which boot of which machine it was made. One from another boot, or without a lock, is removed after a week without
changes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from etbuild.errors import BuildError
from etbuild.files import locks

HIDDEN = ".etbuild-"
"""The prefix of directories next to a user's files."""

_NAME = re.compile(r"(?:\.etbuild-|etbuild-[a-z]+-)[0-9a-f]{18}")  # the boot, and a random number
_ABANDONED_SECONDS = 7 * 24 * 3600  # no build takes this long
_CHILDREN_SECONDS = 1.0


observers: list[Callable[[str, bool], None]] = []
"""Is called before this process makes a directory (path, True), and after it has removed one (path, False)."""
in_use: set[str] = set()
"""The directories of this process, and those that existed when it was forked."""


def _notify(path: Path, exists: bool) -> None:
    (in_use.add if exists else in_use.discard)(str(path))
    for observer in observers:
        observer(str(path), exists)


class Scratch:
    """A new directory that only this process uses. A `with` statement removes it at the end.

    Args:
        parent: An existing directory.
        prefix: The start of its name: `HIDDEN`, or `etbuild-WORD-`.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        parent = parent.absolute()
        self._busy = sweep(parent)
        self._lock: int | None = None
        while True:
            self.path = parent / f"{prefix}{_boot()}{os.urandom(5).hex()}"
            """The path of the directory."""
            _notify(self.path, True)
            self.path.mkdir(0o700)
            try:
                self._lock = locks.acquire(self.path, fcntl.LOCK_EX, locks.DIRECTORY)
            except locks.NoLocks:  # it will be swept after a week
                return
            except FileNotFoundError:  # another process swept it before it was locked
                continue
            except BaseException:
                with contextlib.suppress(OSError):
                    self.path.rmdir()
                raise
            if self._lock is not None:
                return

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the directory with its content. Another process will sweep what cannot be removed now.

        Sweeps again the directories that were locked at the start: children of a killed process may have ended by now.
        """
        _remove_tree(self.path)
        if self._lock is not None:
            with contextlib.suppress(OSError):  # a model may have closed it
                os.close(self._lock)
        if not os.path.lexists(self.path):
            _notify(self.path, False)
        for path in self._busy:
            _sweep(path)


def temporary(word: str) -> Scratch:
    """A new directory in the system's directory for temporary files.

    Args:
        word: The purpose of the directory. It becomes part of the name.

    Raises:
        BuildError: The directory cannot be made.
    """
    import tempfile  # a slow import, and a cache hit makes no temporary file

    try:
        directory = Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # no writable directory for temporary files
        raise BuildError.of(str(error.strerror), "name a directory that has room in TMPDIR") from error
    with write_errors(directory):
        return Scratch(directory, f"etbuild-{word}-")


def sweep(parent: Path) -> list[Path]:
    """Removes the directories that killed processes have left in a directory. Returns those that are still in use."""
    return [path for path in _left_in(parent) if not _sweep(path)]


def salvage(parent: Path, use: Callable[[Path], object]) -> None:
    """Calls a function with each directory that a killed process has left, before a process sweeps it.

    Args:
        parent: Where the directories are. It may be missing.
        use: Is called with the path of a directory that no process uses meanwhile. Its `OSError`s are ignored.
    """
    for path in _left_in(parent.absolute()):
        with contextlib.suppress(OSError), _taken(path):
            use(path)


def remove_left(paths: Iterable[str]) -> None:
    """Removes directories of a process that has ended. Ignores those that cannot be removed.

    The children of that process were killed with it, and may need a moment to end.

    Args:
        paths: Absolute paths of `Scratch` directories.
    """
    for path in map(Path, paths):
        until = time.monotonic() + _CHILDREN_SECONDS
        while _NAME.fullmatch(path.name) and not _sweep(path) and time.monotonic() < until:
            time.sleep(0.01)


def is_scratch(name: str) -> bool:
    """Whether a name has the form of those of `Scratch` directories."""
    return _NAME.fullmatch(name) is not None


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Within this context, turns errors of the system into the `write_error` of a file or directory."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> BuildError:
    """The error for a file or directory that cannot be written. It names the directory that the user knows."""
    hidden = [directory for directory in path.parents if is_scratch(directory.name)]
    directory = hidden[-1].parent if hidden else path.parent
    where = f"in {directory.absolute()}"
    if isinstance(error, FileExistsError) and error.filename == str(path):  # `mkdir` found no directory
        kind = "a link to nothing" if path.is_symlink() else "a file"
        return BuildError.of(f"{path}: is {kind}, but has to be a directory", "name another directory, or remove it")
    hint = f"is there room {where}?" if error.errno in (errno.ENOSPC, errno.EDQUOT) else where
    return BuildError.of(f"{path.name or path}: cannot write the file: {error.strerror or error}", hint)


@functools.cache
def _boot() -> str:
    """An identifier of this boot of this machine. If it is unknown, each process gets its own identifier."""
    try:
        return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:8]
    except OSError:
        return os.urandom(4).hex()


def _left_in(parent: Path) -> list[Path]:
    """The directories that may be removed if no process holds their lock. Empty if the parent cannot be listed."""
    try:
        paths = sorted(path for path in parent.iterdir() if is_scratch(path.name))
    except OSError:
        return []
    return [path for path in paths if f"-{_boot()}" in path.name or _is_old(path)]


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS
    except OSError:
        return False


def _sweep(path: Path) -> bool:
    """Removes a directory of this user whose lock no process holds. Returns whether it is gone."""
    with contextlib.suppress(OSError), _taken(path):
        _remove_tree(path)
    return not os.path.lexists(path)


@contextlib.contextmanager
def _taken(path: Path) -> Iterator[None]:
    """Holds the lock of an unused directory. Raises OSError if it is in use, or if it is not this user's."""
    if path.lstat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    try:
        descriptor = locks.acquire(path, fcntl.LOCK_EX | fcntl.LOCK_NB, locks.DIRECTORY)
    except locks.NoLocks:
        if not _is_old(path):
            raise
        yield
        return
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, "another process has removed it", str(path))
    try:
        yield
    finally:
        os.close(descriptor)


def _remove_tree(path: Path) -> None:
    with contextlib.suppress(RecursionError):  # it is a thousand levels deep, so it stays
        shutil.rmtree(path, ignore_errors=True)
