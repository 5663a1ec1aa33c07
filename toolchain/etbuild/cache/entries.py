"""Reads and writes the files of the local cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from etbuild.cache.record import DIGEST, Damaged, Entry, Record, Unreadable, read_record
from etbuild.files import digests, locks, regular_files
from etbuild.files.scratch import is_scratch, write_error

_BLOCK = 1 << 20
_CLONE = 0x40049409  # FICLONE of linux/fs.h
_PATHS = {
    "blobs": re.compile(r"blobs/([0-9a-f]{2})/\1[0-9a-f]{62}"),
    "records": re.compile(r"records/[a-z]+/([0-9a-f]{2})/\1[0-9a-f]{62}"),
    "locks": re.compile(rf"locks/(gc|[a-z]+-{DIGEST.pattern})"),
}
"""For each directory of the cache that keeps files, the paths of its files, relative to the cache."""

UNFINISHED = "tmp"
"""The directory of files that are being written."""

KINDS = (*_PATHS, UNFINISHED)
"""The names of the cache's directories."""


def record_path(root: Path, step: str, key: str) -> Path:
    """Returns the path of a key's record."""
    assert DIGEST.fullmatch(key), key
    return root / "records" / step / key[:2] / key


def blob_path(root: Path, sha256: str) -> Path:
    """Returns the path of the blob with this digest."""
    return root / "blobs" / sha256[:2] / sha256


def called(root: Path, path: Path) -> str:
    """Returns the name of a record or a blob for messages."""
    kind, step, *_ = path.relative_to(root).parts
    return f"the blob {path.name[:16]}" if kind == "blobs" else f"the record of {step} {path.name[:16]}"


def reason(error: Exception) -> str:
    """Returns the text of an error, without its `errno`."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def find(root: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Lists the files of the cache. Links to directories are not followed.

    Returns:
        The paths of the cache's own files by kind, and the paths that the cache did not make.

    Raises:
        OSError: A directory cannot be read.
    """
    found: dict[str, list[Path]] = {}
    others: list[Path] = []
    for kind, pattern in _PATHS.items():
        found[kind] = []
        for path in _files_below(root / kind):
            is_ours = pattern.fullmatch(path.relative_to(root).as_posix())
            (found[kind] if is_ours else others).append(path)
    others += sorted(path for path in (root / UNFINISHED).iterdir() if not is_scratch(path.name))
    return found, others


def _files_below(directory: Path) -> Iterator[Path]:
    """Yields what is below a directory and is not a directory itself, in order."""
    with os.scandir(directory) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def sizes(paths: Sequence[Path]) -> dict[Path, int]:
    """Returns the sizes of files in bytes, by path. Leaves out those that another process has removed."""
    by_path = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            by_path[path] = path.lstat().st_size
    return by_path


def read(path: Path) -> tuple[Record, os.stat_result]:
    """Returns a record and the `stat` result of its file.

    Raises:
        Damaged: The content is not what was written.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    step, key = path.parts[-3], path.name
    try:
        with regular_files.opened(path) as file:
            return read_record(file.read(), step, key), os.fstat(file.fileno())
    except regular_files.NotRegular as error:
        raise Damaged(reason(error)) from None


def check_record(root: Path, path: Path) -> None:
    """Reads a record and checks that its blobs exist. Does not read the blobs.

    Raises:
        Damaged: The content is not what was written, or a blob is missing.
        Unreadable: A blob cannot be opened now.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    for entry in read(path)[0].files:
        with _open_blob(root, entry.sha256):
            pass


def check_blob(path: Path) -> None:
    """Reads a blob and compares its digest with its name.

    Raises:
        Damaged: The digest is another one.
        OSError: The blob cannot be read; FileNotFoundError if it does not exist.
    """
    try:
        if digests.file_digest(path) != path.name:
            raise Damaged("its content was changed")
    except regular_files.NotRegular as error:
        raise Damaged(reason(error)) from None


@contextlib.contextmanager
def _open_blob(root: Path, sha256: str) -> Iterator[BinaryIO]:
    """Opens the blob with this digest. Does not check its content. Raises Damaged if it is missing or not a regular
    file, and Unreadable if it cannot be opened now."""
    what = f"the blob {sha256[:16]}"
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(regular_files.opened(blob_path(root, sha256)))
        except FileNotFoundError:
            raise Damaged(f"{what} is missing") from None
        except regular_files.NotRegular as error:
            raise Damaged(f"{what}: {reason(error)}") from None
        except OSError as error:
            raise Unreadable(f"{what}: {reason(error)}") from error
        yield file


def copy_out(root: Path, entry: Entry, directory: Path) -> None:
    """Copies a blob and checks the copy. Makes no hard link: editing an output in place would then change the cache.

    Raises:
        Damaged: The blob is missing, or has other content. In that case it is removed.
        Unreadable: The blob cannot be read now.
        BuildError: The copy cannot be written: the output directory failed, not the cache.
    """
    path = directory / entry.name
    with _open_blob(root, entry.sha256) as blob:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with path.open("xb") as target:
                sha256, size = _copy_and_digest(blob, target)
                target.flush()
                copied = os.fstat(target.fileno())
        except OSError as error:
            raise write_error(path, error) from error
    if (sha256, size) != (entry.sha256, entry.size):
        with contextlib.suppress(OSError):
            blob_path(root, entry.sha256).unlink()
        raise Damaged(f"the blob {entry.sha256[:16]} was changed")
    digests.learn_written(path, copied, sha256)


def _copy_and_digest(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copies an open file, or clones it if the file system can. Returns the sha256 and the size of the content."""
    state, size = hashlib.sha256(), 0
    cloned = _clone(source, target)
    while block := _read_block(source):
        state.update(block)
        size += len(block)
        if not cloned:
            target.write(block)
    return state.hexdigest(), size


def _read_block(source: BinaryIO) -> bytes:
    try:
        return source.read(_BLOCK)
    except OSError as error:  # by its type it could come from writing the copy
        raise Unreadable(f"a blob: {reason(error)}") from error


def _clone(source: BinaryIO, target: BinaryIO) -> bool:
    """Makes the target share the blocks of the source until one of them is written to (Btrfs, XFS). Returns whether
    that worked."""
    try:
        fcntl.ioctl(target, _CLONE, source.fileno())
    except OSError:
        return False
    return True


def copy_in(root: Path, source: Path, name: str, unfinished: Path) -> Entry:
    """Stores a file as a blob, unless an undamaged blob with its content exists.

    Args:
        root: The cache.
        source: The directory with the file.
        name: The name of the file there.
        unfinished: A directory of this process in the cache, for a file that is not complete.

    Raises:
        OSError: The file cannot be read, or the blob cannot be read or written.
    """
    with regular_files.opened(source / name) as file:
        sha256 = digests.open_file_digest(source / name, file)
        entry, path = Entry(name, os.fstat(file.fileno()).st_size, sha256), blob_path(root, sha256)
        file.seek(0)

        def copy(target: BinaryIO) -> None:
            if not _clone(file, target):
                shutil.copyfileobj(file, target, _BLOCK)

        if _is_sound(path):
            touch(path)
        else:
            write(path, copy, unfinished)
    digests.learn_written(path, path.stat(), sha256)
    return entry


def take(root: Path, source: Path, sha256: str, unfinished: Path) -> None:
    """Stores a file as a blob by moving it, or by copying it from another file system.

    Args:
        root: The cache.
        source: The directory with the file.
        sha256: The digest of its content, which is its name too, and which the caller has checked.
        unfinished: As in `copy_in`.

    Raises:
        OSError: The file cannot be read, or the blob cannot be written.
    """
    path = blob_path(root, sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        (source / sha256).replace(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_in(root, source, sha256, unfinished)


def _is_sound(path: Path) -> bool:
    try:
        check_blob(path)
    except (FileNotFoundError, Damaged):
        return False
    return True


def write(path: Path, write_to: Callable[[BinaryIO], object], unfinished: Path) -> None:
    """Writes a file atomically: to the directory `unfinished` first, with fsync, and then renames it.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (unfinished / path.name).open("wb") as file:
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
    (unfinished / path.name).replace(path)


def remove_copies(names: Sequence[str], directory: Path) -> None:
    """Removes files and the directories that are empty then. Ignores what cannot be removed."""
    for name in names:
        for path in (directory / name, *(directory / parent for parent in Path(name).parents[:-1])):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def touch(path: Path) -> None:
    """Sets the modification time of an entry to now. Errors are ignored: a read-only cache can still be read."""
    with contextlib.suppress(OSError):
        os.utime(path)


def sweep_lock(path: Path) -> None:
    """Removes the lock file of a key, unless a process holds the lock."""
    with contextlib.suppress(OSError), locks.locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, locks.LOCK_FILE):
        path.unlink()
