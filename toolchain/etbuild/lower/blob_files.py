"""Keeps blobs of named data in files, which ExecuTorch's stores accept: they need no memory until they are written."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from executorch.exir._serialize._cord import CordBuffer, FileBackedData

from etbuild.errors import BuildError
from etbuild.files import digests


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
    return FileBackedData(str(path), sha256=digest.digest())
