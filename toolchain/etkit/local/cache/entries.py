"""Reads and writes the files of the local cache: blobs by the digest of their content, and records.

A record lists the files that a step made. It has two lines: the sha256 of the second line, and canonical JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from etbuild.files import digests, regular_files
from etbuild.files.copying import copy_part
from etbuild.files.scratch import write_errors

_SCHEMA = "executorch-cache-record/v1"
_BLOCK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLONE = 0x40049409  # FICLONE of linux/fs.h
_PATHS = {
    "blobs": re.compile(r"blobs/([0-9a-f]{2})/\1[0-9a-f]{62}"),
    "records": re.compile(r"records/[a-z]+/([0-9a-f]{2})/\1[0-9a-f]{62}"),
    "locks": re.compile(r"locks/[a-z]+-[0-9a-f]{64}"),
}
"""For each directory of the cache that keeps files, the paths of its files, relative to the cache."""

UNFINISHED = "tmp"
"""The directory of files that are being written."""

KINDS = (*_PATHS, UNFINISHED)
"""The names of the cache's directories."""


class Damaged(Exception):
    """An entry has other content than was stored."""


class Unreadable(Exception):
    """An entry cannot be read now. It may be undamaged: a failing disk, or a process without free file descriptors,
    does not show that its content is wrong."""


@dataclass(frozen=True)
class Entry:
    """A file in a record: its name, its size in bytes, and its digest."""

    name: str
    size: int
    sha256: str


def record_path(root: Path, step: str, key: str) -> Path:
    """Returns the path of a key's record."""
    return root / "records" / step / key[:2] / key


def blob_path(root: Path, sha256: str) -> Path:
    """Returns the path of the blob with this digest."""
    return root / "blobs" / sha256[:2] / sha256


def reason(error: BaseException) -> str:
    """Returns the text of an error, without its `errno`."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def find(root: Path, kind: str) -> list[Path]:
    """Lists the files of a kind that the cache has made, in order. Enters no link to a directory.

    Raises:
        OSError: A directory cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    walked = os.walk(root / kind, onerror=fail)
    paths = sorted(Path(directory, name) for directory, _, names in walked for name in names)
    return [path for path in paths if _PATHS[kind].fullmatch(path.relative_to(root).as_posix())]


def read_record(path: Path) -> list[Entry]:
    """Returns the files that a record lists.

    Raises:
        Damaged: The content is not what was written, or it belongs to another step or key.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    try:
        with regular_files.opened(path) as file:
            digest, _, body = file.read().partition(b"\n")
    except regular_files.NotRegular as error:
        raise Damaged(reason(error)) from None
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise Damaged("its digest is wrong")
    try:
        content = json.loads(body)
        found = [Entry(**entry) for entry in content["files"]]
        is_of_key = (content["schema"], content["step"], content["key"]) == (_SCHEMA, path.parts[-3], path.name)
        odd = any(_is_odd(entry) for entry in found)
    except (ValueError, KeyError, TypeError):
        raise Damaged("it is not a record") from None
    if not is_of_key or odd:
        raise Damaged("it is the record of something else")
    return found


def _is_odd(entry: Entry) -> bool:
    """Whether an entry's name leads out of the directory, or its digest is no sha256."""
    name = Path(entry.name)
    return ".." in name.parts or name.is_absolute() or "\0" in entry.name or not _DIGEST.fullmatch(entry.sha256)


def write_record(root: Path, step: str, key: str, files: Sequence[Entry], unfinished: Path) -> None:
    """Writes the record of a key. The last argument and the errors are those of `copy_in`."""
    content = {"schema": _SCHEMA, "step": step, "key": key, "files": [asdict(entry) for entry in files]}
    body = digests.canonical_json(content)
    text = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    _write(record_path(root, step, key), lambda file: file.write(text), unfinished)


def check_record(root: Path, path: Path) -> None:
    """Reads a record and checks that its blobs exist. Does not read the blobs.

    Raises:
        Damaged: The content is not what was written, or a blob is missing.
        Unreadable: A blob cannot be opened now.
        OSError: The record cannot be read; FileNotFoundError if it does not exist.
    """
    for entry in read_record(path):
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
    with _open_blob(root, entry.sha256) as blob, write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with path.open("xb") as target:
            sha256, size = _copy_and_digest(blob, target)
            target.flush()
            copied = os.fstat(target.fileno())
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
    except OSError as error:  # an OSError could also come from writing the copy
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

        def copy(target: BinaryIO) -> None:
            copy_part(file, target, 0, entry.size)

        try:
            check_blob(path)
            touch(path)
        except (FileNotFoundError, Damaged):
            _write(path, copy, unfinished)
    digests.learn_written(path, path.stat(), sha256)
    return entry


def move_in(root: Path, source: Path, sha256: str, unfinished: Path) -> None:
    """Stores a file as a blob by moving it.

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
    shutil.move(source / sha256, unfinished)  # copies it from another file system
    (unfinished / sha256).replace(path)


def _write(path: Path, write_to: Callable[[BinaryIO], object], unfinished: Path) -> None:
    """Writes a file atomically: to the directory `unfinished` first, with fsync, and then renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (unfinished / path.name).open("wb") as file:
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
    (unfinished / path.name).replace(path)


def remove_copies(names: Sequence[str], directory: Path) -> None:
    """Removes files, and directories that become empty. Ignores errors."""
    for name in names:
        for path in (directory / name, *(directory / parent for parent in Path(name).parents[:-1])):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


def touch(path: Path) -> None:
    """Sets the modification time of an entry to now. Errors are ignored: a read-only cache can still be read."""
    with contextlib.suppress(OSError):
        os.utime(path)
