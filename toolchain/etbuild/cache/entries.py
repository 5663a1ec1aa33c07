"""The files of the local cache, by their places below its open directory. No link in it is followed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from etbuild.cache.record import DIGEST, Damaged, Entry, Record, Unreadable, read_record
from etbuild.files.directories import Folder, NotAFile, NotAFolder
from etbuild.files.scratch import is_unfinished, remove_unlocked, unfinished, write_error

_BLOCK = 1 << 20
_CLONE = 0x40049409  # FICLONE of linux/fs.h
_STEP, _PREFIX = re.compile(r"[a-z]+"), re.compile(r"[0-9a-f]{2}")
_LOCK = re.compile(rf"gc|[a-z]+-{DIGEST.pattern}")
_LEVELS: dict[str, list[re.Pattern[str]]] = {"blobs": [_PREFIX], "records": [_STEP, _PREFIX], "locks": [], "tmp": []}
"""What directories are called in those of the cache, level by level."""

KINDS = tuple(_LEVELS)
"""The cache's directories."""


def record_place(step: str, key: str) -> str:
    """Where the record of a key is."""
    assert DIGEST.fullmatch(key), key
    return f"records/{step}/{key[:2]}/{key}"


def blob_place(sha256: str) -> str:
    """Where the content of a digest is."""
    return f"blobs/{sha256[:2]}/{sha256}"


def called(place: str) -> str:
    """What messages call a record or a blob."""
    kind, step, *_, name = place.split("/")
    return f"the blob {name[:16]}" if kind == "blobs" else f"the record of {step} {name[:16]}"


def reason(error: Exception) -> str:
    """What an error says, without the number of the system's."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def find(root: Folder) -> tuple[dict[str, list[str]], list[str]]:
    """The places of all files by kind, and of what the cache has not made.

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
    """The places below a directory, and whether the cache has made what is there."""
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
    """The bytes of records and blobs, by place."""
    found = {}
    for place in (*places["records"], *places["blobs"]):
        with contextlib.suppress(FileNotFoundError), root.holder(place) as (folder, name):
            found[place] = folder.status(name).st_size
    return found


def read(root: Folder, place: str) -> tuple[Record, os.stat_result]:
    """A record, and what the file system says of it.

    Raises:
        Damaged: It is not what was written.
        OSError: It cannot be read. FileNotFoundError: There is none.
    """
    _, step, _, key = place.split("/")
    try:
        with root.holder(place) as (folder, name), folder.open(name) as file:
            return read_record(file.read(), step, key), os.fstat(file.fileno())
    except NotAFile as error:
        raise Damaged(reason(error)) from None


def check_record(root: Folder, place: str) -> None:
    """Reads a record, and looks whether its blobs are there.

    Raises:
        Damaged: It is not what was written, or a blob is missing.
        Unreadable: A blob cannot be opened now.
        OSError: It cannot be read. FileNotFoundError: There is none.
    """
    for entry in read(root, place)[0].files:
        open_blob(root, entry.sha256).close()


def check_blob(root: Folder, place: str) -> None:
    """Reads a blob.

    Raises:
        Damaged: It has not the content that its name says.
        OSError: It cannot be read. FileNotFoundError: There is none.
    """
    try:
        with root.holder(place) as (folder, name), folder.open(name) as file:
            if _digest(file) != name:
                raise Damaged("it has another content")
    except NotAFile as error:
        raise Damaged(reason(error)) from None


def open_blob(root: Folder, sha256: str) -> BinaryIO:
    """The blob of a digest. Its content is not looked at.

    Raises:
        Damaged: There is none.
        Unreadable: It cannot be opened now.
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
    """Copies a blob and checks the copy. No hard link: who edits an output in place would edit the cache.

    Raises:
        Damaged: The blob is missing, or has another content, and is removed.
        Unreadable: It cannot be read now.
        BuildError: The copy cannot be written.
    """
    with open_blob(root, entry.sha256) as blob, _destination(directory, entry.name) as target:
        sha256, size = _copy_and_digest(blob, target)
    if (sha256, size) != (entry.sha256, entry.size):
        with contextlib.suppress(OSError):
            remove(root, blob_place(entry.sha256))
        raise Damaged(f"the blob {entry.sha256[:16]} has another content")


@contextlib.contextmanager
def _destination(directory: Path, name: str) -> Iterator[BinaryIO]:
    """A new file in place of what has its name. An error of it is no fault of the cache."""
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
    """Copies an open file, or clones it where the file system can, and digests what the copy holds."""
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
    except OSError as error:  # by its type it could be one of the copy
        raise Unreadable(f"a blob: {reason(error)}") from error


def _clone(source: int, target: int) -> bool:
    """Shares the blocks of a file, to be copied when one of the two is written to (Btrfs, XFS)."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def _digest(file: BinaryIO) -> str:
    state = hashlib.sha256()
    while block := file.read(_BLOCK):
        state.update(block)
    return state.hexdigest()


def copy_in(root: Folder, source: Folder, name: str) -> Entry:
    """Keeps a file as a blob, unless there is a sound one of its content.

    Raises:
        OSError: It cannot be read, or the blob cannot be read or written.
    """
    with source.holder(name) as (folder, file), folder.open(file) as opened:
        entry = Entry(name, os.fstat(opened.fileno()).st_size, _digest(opened))
        place = blob_place(entry.sha256)
        if _is_sound(root, place):
            touch(root, place)
            return entry
        opened.seek(0)

        def copy(target: BinaryIO) -> None:
            if not _clone(opened.fileno(), target.fileno()):
                shutil.copyfileobj(opened, target, _BLOCK)

        write(root, place, copy)
    return entry


def _is_sound(root: Folder, place: str) -> bool:
    try:
        check_blob(root, place)
    except (FileNotFoundError, Damaged):
        return False
    return True


def write(root: Folder, place: str, write_to: Callable[[BinaryIO], object]) -> None:
    """Writes a file whole: elsewhere first, and to the disk before it gets its name.

    Raises:
        OSError: It cannot be written.
    """
    root.make_parents(place)
    with root.enter("tmp") as made, unfinished(made) as (file, temporary), root.holder(place) as (folder, name):
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
        made.move(temporary, folder, name)


def remove(root: Folder, place: str) -> None:
    """Removes a file, or a link itself. It may be gone already.

    Raises:
        OSError: It cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError), root.holder(place) as (folder, name):
        folder.remove(name)


def remove_copies(names: Sequence[str], directory: Path) -> None:
    """Removes files, and the directories above them that hold nothing else, as far as that can be done."""
    with contextlib.suppress(OSError), Folder.at(directory) as top:
        for name in names:
            remove(top, name)
            for parent in Path(name).parents[:-1]:
                with contextlib.suppress(OSError), top.holder(parent.as_posix()) as (folder, last):
                    folder.remove_empty(last)


def touch(root: Folder, place: str) -> None:
    """Notes that an entry was used. Where nothing can be written, it can still be read."""
    with contextlib.suppress(OSError), root.holder(place) as (folder, name):
        os.utime(name, dir_fd=folder.descriptor, follow_symlinks=False)


def sweep_lock(root: Folder, place: str) -> None:
    """Removes the lock of a key, unless a process has it."""
    with contextlib.suppress(OSError), root.holder(place) as (folder, name):
        remove_unlocked(folder, name)
