"""Keeps blobs of named data in files, which ExecuTorch's stores accept: they need no memory until they are written."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executorch.exir._serialize import _cord

from etbuild.errors import BuildError
from etbuild.files import digests
from etbuild.files.writing import WrittenFile

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

if hasattr(_cord, "FileBackedData"):
    from executorch.exir._serialize._cord import FileBackedData
else:  # before release 1.5, where nothing makes one

    class FileBackedData:  # type: ignore[no-redef]
        """A class, so that modules with subclasses of it can be imported."""


__all__ = ["FileBackedData", "PartOfFile", "in_file"]


class PartOfFile(FileBackedData):  # type: ignore[misc]
    """A part of a file, whose digest and checksum are known."""

    def __init__(self, path: Path, size: int, sha256: bytes, checksum: int, offset: int = 0) -> None:
        """The file must exist with this content as long as this object."""
        self._path, self._size, self._sha256, self._finalizer = str(path), size, sha256, None
        self._offset, self._checksum = offset, checksum

    def prefix(self, size: int) -> bytes:
        """Its first bytes."""
        with Path(self._path).open("rb") as file:
            file.seek(self._offset)
            return file.read(min(size, self._size))

    def to_bytes(self) -> bytes:
        """All of it."""
        return self.prefix(self._size)

    def write_to_file(self, outfile: Any) -> None:
        """Copies it to a file."""
        if not isinstance(outfile, WrittenFile):
            outfile.write(self.to_bytes())
            return
        with Path(self._path).open("rb") as file:
            outfile.copy(file, self._offset, self._size, self._checksum)


def in_file(directory: Path, blob: CordBuffer | memoryview) -> FileBackedData:
    """Writes a blob to a file that is named after its digest. A blob that is already in a file stays there.

    Raises:
        BuildError: The file cannot be written.
    """
    if isinstance(blob, FileBackedData):
        return blob
    digest = hashlib.sha256(blob)
    path = directory / digest.hexdigest()
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")  # others may write the blob
        try:
            unfinished.write_bytes(blob)
            unfinished.replace(path)
            digests.learn_written(path, path.stat(), digest.hexdigest())
        except OSError as error:
            raise BuildError.of(f"cannot write a blob of named data: {error.strerror}") from error
    return PartOfFile(path, memoryview(blob).nbytes, digest.digest(), zlib.crc32(blob))
