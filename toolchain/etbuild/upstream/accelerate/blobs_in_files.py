"""Writes the weights that XNNPACK packs to files immediately, instead of keeping them in memory.

Otherwise each delegate's packed weights stay in memory as `bytes` until the program is written: a second copy of the
model, and a third one for a second method. ExecuTorch's store of named data also accepts files, and copies them to the
program.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir._serialize._cord import CordBuffer, FileBackedData

from etbuild.errors import BuildError
from etbuild.files import digests
from etbuild.patching import replaced


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


def blobs_in_files(directory: Path) -> AbstractContextManager[None]:
    """Returns a context manager in which XNNPACK's blobs are written to an existing directory. The files are needed as
    long as the lowered methods."""
    preprocess = XnnpackBackend.preprocess

    def preprocess_to_files(*arguments: Any) -> Any:
        result = preprocess(*arguments)
        output = result.data_store_output
        if output is not None:
            output.buffers[:] = [in_file(directory, blob) for blob in output.buffers]
        return result

    return replaced(XnnpackBackend, "preprocess", staticmethod(preprocess_to_files))
