"""ExecuTorch's class of blobs that are in a file. Before release 1.5 there is none, and nothing here makes one."""

from __future__ import annotations

from executorch.exir._serialize import _cord

if hasattr(_cord, "FileBackedData"):
    from executorch.exir._serialize._cord import FileBackedData
else:

    class FileBackedData:  # type: ignore[no-redef]
        """Modules with subclasses of it can be imported."""


__all__ = ["FileBackedData"]
