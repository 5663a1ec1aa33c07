"""Keeps what XNNPACK makes of weights in files, as soon as it is made.

Each delegate's packed weights are `bytes` until the program has been written: a second copy of the model, and a third
for a second method. ExecuTorch's store of named data takes files in place of bytes, and copies them to the program.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir._serialize._cord import CordBuffer, FileBackedData

from etbuild.errors import BuildError, Problem
from etbuild.patching import replaced


def in_file(directory: Path, blob: CordBuffer) -> FileBackedData:
    """A blob in a file that is called after its content; one that is in a file already stays there.

    Raises:
        BuildError: The file cannot be written.
    """
    if isinstance(blob, FileBackedData):
        return blob
    digest = hashlib.sha256(blob)
    path = directory / digest.hexdigest()
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")  # another process may be writing the same one
        try:
            unfinished.write_bytes(blob)
            unfinished.replace(path)
        except OSError as error:
            raise BuildError([Problem(f"cannot write a blob of named data: {error.strerror}")]) from error
    return FileBackedData(str(path), sha256=digest.digest())


@contextlib.contextmanager
def blobs_in_files(directory: Path) -> Iterator[None]:
    """Blobs go to files of an existing directory, which have to stay as long as what is lowered inside."""
    preprocess = XnnpackBackend.preprocess

    def preprocess_to_files(*arguments: Any) -> Any:
        result = preprocess(*arguments)
        output = result.data_store_output
        if output is not None:
            output.buffers[:] = [in_file(directory, blob) for blob in output.buffers]
        return result

    with replaced(XnnpackBackend, "preprocess", staticmethod(preprocess_to_files)):
        yield
