"""Releases of ExecuTorch: the supported ones, and how they differ. No other module checks for a release.

The lock pins the newest one. The tests build the core's programs with each of them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from typing import TYPE_CHECKING

from etbuild.errors import BuildError

if TYPE_CHECKING:
    from executorch.exir._serialize._cord import CordBuffer

SUPPORTED = ("1.4.1", "1.5.1")
# The switches of `etplugins.accelerate` and the saved methods of `method_archive` use private code of these releases.
WRITTEN_FOR = {"torch": "2.13.0", "executorch": "1.5.1"}


def installed(name: str) -> str:
    """The release of an installed distribution, without a suffix such as `+cpu`."""
    return importlib.metadata.version(name).partition("+")[0]


def fitting() -> bool:
    """Whether the installed release can lower methods one by one, and faster. If not, the same bytes take longer."""
    return all(installed(name) == version for name, version in WRITTEN_FOR.items())


def check() -> None:
    """Prints a note if the tests do not build with the installed release.

    Raises:
        BuildError: The installed release is older than all supported ones.
    """
    release = installed("executorch")
    if release in SUPPORTED:
        return
    if _numbers(release) < _numbers(SUPPORTED[0]):
        hint = f"supported: {', '.join(SUPPORTED)}; pip install executorch=={SUPPORTED[-1]}"
        raise BuildError.of(f"ExecuTorch {release} is too old", hint)
    print(f"note: ExecuTorch {release} is untested (tested: {', '.join(SUPPORTED)})", file=sys.stderr)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)[:3]]


def is_file_backed(blob: CordBuffer) -> bool:
    """Whether a blob is in a file and not in memory. Before release 1.5, each blob is in memory."""
    from executorch.exir._serialize import _cord

    return hasattr(_cord, "FileBackedData") and isinstance(blob, _cord.FileBackedData)


def sha256_of(blob: CordBuffer) -> bytes:
    """The digest of a blob. A blob in a file already knows its digest."""
    digest: bytes = blob.sha256() if is_file_backed(blob) else hashlib.sha256(blob).digest()
    return digest
