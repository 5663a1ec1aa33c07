"""Makes expensive directories once for all processes of a test run."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_once(directory: Path, make: Callable[[Path], object]) -> Path:
    """Makes a directory unless another process of this run has already made it.

    Args:
        directory: The path of the directory.
        make: Fills an empty directory. If it raises, nothing is kept, and the next process tries again.

    Returns:
        The directory.
    """
    with directory.with_name(f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            partial = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
            make(partial)
            partial.rename(directory)
    return directory
