"""Assembles the files of programs in a hidden directory, and then moves them to their names."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from etbuild.errors import BuildError
from etbuild.files import regular_files
from etbuild.files.digests import file_digest
from etbuild.files.scratch import write_error
from etbuild.files.writing import Artifact
from etbuild.publishing import artifacts
from etkit.registry.oci.descriptors import Descriptor

_BLOCK = 1 << 20


def publish(
    programs: Mapping[str, Mapping[str, Descriptor]],
    store: Path,
    staged: Path,
    directory: Path,
    removed: Sequence[str] = (),
) -> None:
    """Moves the files of programs into a directory, when all of them are complete.

    Args:
        programs: The files by name, by the name of the program. The index comes last.
        store: The directory with their contents, each under its sha256.
        staged: The staging directory that has the store.
        directory: Where the files go.
        removed: Files of the directory that are removed.

    Raises:
        BuildError: A file cannot be moved there.
    """
    laid = [_laid(files, store, staged / "programs" / name) for name, files in programs.items()]
    artifacts.publish_together(laid, directory, removed)


def _laid(files: Mapping[str, Descriptor], store: Path, directory: Path) -> list[Artifact]:
    """Lays the files of a program under their names in a new directory."""
    laid: list[Artifact] = []
    for name, blob in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(store / blob.sha256)  # two programs that share a file share it on disk too
        except OSError:  # the file system has no links
            shutil.copyfile(store / blob.sha256, target)
        laid.append(Artifact(directory, name, "file", blob.size, blob.sha256))
    return laid


def is_free(directory: Path) -> bool:
    """Whether a new directory may take this place: there is nothing, or an empty directory."""
    return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))


def holds_only(directory: Path, names: Collection[str]) -> bool:
    """Whether a directory holds no other files than these, and no links."""
    found = [path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()]
    return all(path.relative_to(directory).as_posix() in names and not path.is_symlink() for path in found)


def take_over(directory: Path, name: str, blob: Descriptor, store: Path) -> bool:
    """Puts a file of a directory into the store, if it is a regular file with the right content.

    Args:
        directory: The directory.
        name: The name of the file.
        blob: What it should be.
        store: The directory that gets the content under its sha256.
    """
    target = store / blob.sha256
    if target.exists():  # from another file with the same content
        return True
    try:
        status = (directory / name).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != blob.size:
            return False
        target.hardlink_to(directory / name)
        if file_digest(target) == blob.sha256:
            return True
    except OSError:  # the file system has no links, or the file is another user's
        pass
    target.unlink(missing_ok=True)
    return False


def write(path: Path, data: bytes) -> None:
    """Writes a file of a hidden directory.

    Raises:
        BuildError: It cannot be written.
    """
    try:
        path.write_bytes(data)
    except OSError as error:
        raise write_error(path, error) from error


def beside(path: Path, name: str) -> Path:
    """The path of a file that another one names, in the directory of that other one.

    A build system may put links in place of both files. Then the targets of the links are in one directory.

    Args:
        path: The other file.
        name: The name of the file, relative to the directory of `path`.

    Raises:
        BuildError: A link leads out of the directory.
    """
    file = path.parent / name
    try:
        real = file.resolve(strict=True)
        directories = path.parent.resolve(), path.resolve().parent
    except (OSError, RuntimeError):  # opening it will show why it cannot be read
        return file
    if not any(real.is_relative_to(directory) for directory in directories):
        raise BuildError.of(f"{file}: a link leads out of the directory, to {real}", "put the file itself there")
    return file


@contextmanager
def opened(path: Path, blob: Descriptor, hint: str, copied: Path | None = None) -> Iterator[BinaryIO]:
    """Opens a file. When the context ends, the file, or a copy that was made of it, is compared with a blob. The hint
    says what to do if the content differs.

    Raises:
        BuildError: It cannot be read, or has other content.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(regular_files.opened(path))
        except OSError as error:
            raise BuildError.of(f"{path}: cannot be read: {error.strerror}", hint) from None
        yield file
    compared = path if copied is None else copied
    if compared.stat().st_size != blob.size or file_digest(compared) != blob.sha256:
        raise BuildError.of(f"{path}: has other content than its digest says", hint)


def check(path: Path, blob: Descriptor, hint: str) -> None:
    """Compares a file with the blob that it should be. Arguments and errors: as `opened`."""
    with opened(path, blob, hint):
        pass


def read(path: Path, blob: Descriptor, limit: int, hint: str) -> bytes:
    """The content of a file, which has at most `limit` bytes. Other arguments and errors: as `opened`."""
    if blob.size > limit:
        raise BuildError.of(f"{path}: has {blob.size} bytes, and at most {limit} are read")
    with opened(path, blob, hint) as file:
        return file.read(blob.size)


def copy(source: Path, blob: Descriptor, target: Path, hint: str) -> None:
    """Copies a file, unless the copy is there. Other arguments and errors: as `opened`."""
    if target.exists():
        return
    with opened(source, blob, hint, target) as file:
        try:
            with target.open("xb") as copied:
                shutil.copyfileobj(file, copied, _BLOCK)
        except OSError as error:
            raise write_error(target, error) from error
