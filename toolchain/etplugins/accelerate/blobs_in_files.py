"""Writes the weights that XNNPACK packs to files immediately, instead of keeping them in memory.

Otherwise each delegate's packed weights stay in memory as `bytes` until the program is written: a second copy of the
model, and a third one for a second method. ExecuTorch's store of named data also accepts files, and copies them to the
program.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

from etbuild.patching import replaced
from etplugins.accelerate.blob_files import in_file


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
