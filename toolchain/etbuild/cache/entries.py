"""Reads and writes the files of the local cache. Their paths are relative to the cache's open directory; links are not
followed."""

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
from etbuild.files import digests
from etbuild.files.directories import Folder, NotAFile, NotAFolder
from etbuild.files.scratch import is_unfinished, remove_unlocked, unfinished, write_error

_BLOCK = 1 << 20
_CLONE = 0x40049409  # FICLONE of linux/fs.h
_STEP, _PREFIX = re.compile(r"[a-z]+"), re.compile(r"[0-9a-f]{2}")
_LOCK = re.compile(rf"gc|[a-z]+-{DIGEST.pattern}")
_LEVELS: dict[str, list[re.Pattern[str]]] = {"blobs": [_PREFIX], "records": [_STEP, _PREFIX], "locks": [], "tmp": []}
"""For each directory of the cache, the patterns for the names of its sub-directories, level by level."""

KINDS = tuple(_LEVELS)
"""The names of the cache's directories."""


def record_place(step: str, key: str) -> str:
    """Returns the path of a key's record, relative to the cache."""
    assert DIGEST.fullmatch(key), key
    return f"records/{step}/{key[:2]}/{key}"


def blob_place(sha256: str) -> str:
    """Returns the path of the blob with this digest, relative to the cache."""
    return f"blobs/{sha256[:2]}/{sha256}"


def called(place: str) -> str:
    """Returns the name of a record or a blob for messages."""
    kind, step, *_, name = place.split("/")
    return f"the blob {name[:16]}" if kind == "blobs" else f"the record of {step} {name[:16]}"


def reason(error: Exception) -> str:
    """Returns the text of an error, without its `errno`."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def find(root: Folder) -> tuple[dict[str, list[str]], list[str]]:
    """Lists the files of the cache.

    Returns:
        The paths of the cache's own files by kind, and the paths that the cache did not make.

    Raises:
        OSError: A directory cannot be read.
    """
    ours: dict[str, list[str]] = {}
    others: list[str] = []
    for kind, levels in _LEVELS.items():
        ours[kind] = []
        with root.enter(kind) as folder:
            for place, is_ours in _walk(folder, kind, levels):
                (ours[kind] if is_ours else others).append(place)
    return ours, others


def _walk(folder: Folder, place: str, levels: Sequence[re.Pattern[str]]) -> Iterator[tuple[str, bool]]:
    """Yields each path below a directory, and whether the cache made it."""
    for name in folder.names():
        inner = f"{place}/{name}"
        if not levels:
            yield inner, _is_ours(inner) and not folder.is_folder(name)
        elif levels[0].fullmatch(name) and folder.is_folder(name):
            with contextlib.suppress(FileNotFoundError, NotAFolder), folder.enter(name) as entered:
                yield from _walk(entered, inner, levels[1:])
        else:
            yield inner, False


def _is_ours(place: str) -> bool:
    kind, *parents, name = place.split("/")
    if kind == "tmp":
        return is_unfinished(name)
    if kind == "locks":
        return _LOCK.fullmatch(name) is not None
    return DIGEST.fullmatch(name) is not None and name.startswith(parents[-1])


def sizes(root: Folder, places: dict[str, list[str]]) -> dict[str, int]:
    """Returns the sizes of records and blobs in bytes, by path."""
    by_place = {}
    for place in (*places["records"], *places["blobs"]):
        with contextlib.suppress(FileNotFoundError), root.holder(place) as (folder, name):
            by_place[place] = folder.status(name).st_size
    return by_place


def read(root: Folder, place: str) -> tuple[Record, os.stat_result]:
    """Returns a record and the `stat` result of its file.

    Raises:
        Damaged: The content is not what was written.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    _, step, _, key = place.split("/")
    try:
        with root.holder(place) as (folder, name), folder.open(name) as file:
            return read_record(file.read(), step, key), os.fstat(file.fileno())
    except NotAFile as error:
        raise Damaged(reason(error)) from None


def check_record(root: Folder, place: str) -> None:
    """Reads a record and checks that its blobs exist. Does not read the blobs.

    Raises:
        Damaged: The content is not what was written, or a blob is missing.
        Unreadable: A blob cannot be opened now.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    for entry in read(root, place)[0].files:
        open_blob(root, entry.sha256).close()


def check_blob(root: Folder, place: str) -> None:
    """Reads a blob and compares its digest with its name.

    Raises:
        Damaged: The digest is another one.
        OSError: The blob cannot be read; FileNotFoundError if it does not exist.
    """
    try:
        with root.holder(place) as (folder, name), folder.open(name) as file:
            if digests.open_file_digest(folder.path / name, file) != name:
                raise Damaged("its content was changed")
    except NotAFile as error:
        raise Damaged(reason(error)) from None


def open_blob(root: Folder, sha256: str) -> BinaryIO:
    """Opens the blob with this digest. Does not check its content.

    Raises:
        Damaged: The blob is missing, or is not a regular file.
        Unreadable: The blob cannot be opened now.
    """
    what = f"the blob {sha256[:16]}"
    try:
        with root.holder(blob_place(sha256)) as (folder, name):
            return folder.open(name)
    except FileNotFoundError:
        raise Damaged(f"{what} is missing") from None
    except NotAFile as error:
        raise Damaged(f"{what}: {reason(error)}") from None
    except OSError as error:
        raise Unreadable(f"{what}: {reason(error)}") from error


def copy_out(root: Folder, entry: Entry, directory: Path) -> None:
    """Copies a blob and checks the copy. Makes no hard link: editing an output in place would then change the cache.

    Raises:
        Damaged: The blob is missing, or has other content. In that case it is removed.
        Unreadable: The blob cannot be read now.
        BuildError: The copy cannot be written.
    """
    with open_blob(root, entry.sha256) as blob, _destination(directory, entry.name) as target:
        sha256, size = _copy_and_digest(blob, target)
        target.flush()
        copied = os.fstat(target.fileno())
    if (sha256, size) != (entry.sha256, entry.size):
        with contextlib.suppress(OSError):
            remove(root, blob_place(entry.sha256))
        raise Damaged(f"the blob {entry.sha256[:16]} was changed")
    digests.learn_written(directory / entry.name, copied, sha256)


@contextlib.contextmanager
def _destination(directory: Path, name: str) -> Iterator[BinaryIO]:
    """Opens a new file, which replaces an existing file of this name. An `OSError` becomes a `BuildError`: the output
    directory failed, not the cache."""
    try:
        with Folder.at(directory) as top:
            top.make_parents(name)
            with top.holder(name) as (folder, file):
                folder.remove(file)
                with folder.create(file) as opened:
                    yield opened
    except OSError as error:
        raise write_error(directory / name, error) from error


def _copy_and_digest(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copies an open file, or clones it if the file system can. Returns the sha256 and the size of the content."""
    state, size = hashlib.sha256(), 0
    cloned = _clone(source.fileno(), target.fileno())
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


def _clone(source: int, target: int) -> bool:
    """Makes the target share the blocks of the source until one of them is written to (Btrfs, XFS). Returns whether
    that worked."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def copy_in(root: Folder, source: Folder, name: str) -> Entry:
    """Stores a file as a blob, unless an undamaged blob with its content exists.

    Raises:
        OSError: The file cannot be read, or the blob cannot be read or written.
    """
    with source.holder(name) as (folder, file), folder.open(file) as opened:
        sha256 = digests.open_file_digest(folder.path / file, opened)
        entry, place = Entry(name, os.fstat(opened.fileno()).st_size, sha256), blob_place(sha256)
        opened.seek(0)

        def copy(target: BinaryIO) -> None:
            if not _clone(opened.fileno(), target.fileno()):
                shutil.copyfileobj(opened, target, _BLOCK)

        if _is_sound(root, place):
            touch(root, place)
        else:
            write(root, place, copy)
    with root.holder(place) as (folder, blob):
        digests.learn_written(folder.path / blob, folder.status(blob), sha256)
    return entry


def take(root: Folder, source: Folder, name: str, sha256: str) -> None:
    """Stores a file as a blob by moving it, or by copying it from another file system.

    Args:
        root: The cache.
        source: The directory with the file.
        name: Its name.
        sha256: The digest of its content, which the caller has checked.

    Raises:
        OSError: The file cannot be read, or the blob cannot be written.
    """
    place = blob_place(sha256)
    root.make_parents(place)
    try:
        with root.holder(place) as (folder, blob):
            source.move(name, folder, blob)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_in(root, source, name)


def _is_sound(root: Folder, place: str) -> bool:
    try:
        check_blob(root, place)
    except (FileNotFoundError, Damaged):
        return False
    return True


def write(root: Folder, place: str, write_to: Callable[[BinaryIO], object]) -> None:
    """Writes a file atomically: to `tmp` first, with fsync, and then renames it.

    Raises:
        OSError: The file cannot be written.
    """
    root.make_parents(place)
    with root.enter("tmp") as tmp, unfinished(tmp) as (file, temporary), root.holder(place) as (folder, name):
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
        tmp.move(temporary, folder, name)


def remove(root: Folder, place: str) -> None:
    """Removes a file, or a link but not its target. A missing file is not an error.

    Raises:
        OSError: The file cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError), root.holder(place) as (folder, name):
        folder.remove(name)


def remove_copies(names: Sequence[str], directory: Path) -> None:
    """Removes files and the directories that are empty then. Ignores what cannot be removed."""
    with contextlib.suppress(OSError), Folder.at(directory) as top:
        for name in names:
            remove(top, name)
            for parent in Path(name).parents[:-1]:
                with contextlib.suppress(OSError), top.holder(parent.as_posix()) as (folder, last):
                    folder.remove_empty(last)


def touch(root: Folder, place: str) -> None:
    """Sets the modification time of an entry to now. Errors are ignored: a read-only cache can still be read."""
    with contextlib.suppress(OSError), root.holder(place) as (folder, name):
        os.utime(name, dir_fd=folder.descriptor, follow_symlinks=False)


def sweep_lock(root: Folder, place: str) -> None:
    """Removes the lock file of a key, unless a process holds the lock."""
    with contextlib.suppress(OSError), root.holder(place) as (folder, name):
        remove_unlocked(folder, name)
