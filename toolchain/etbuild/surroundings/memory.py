"""The memory of this process: how much it took, and giving back what it has freed."""

import contextlib
import ctypes
import re
import resource
import sys
from pathlib import Path

_UNIT = 1 if sys.platform == "darwin" else 1024  # of `ru_maxrss`, in bytes


def peak() -> int:
    """The most bytes that one process took so far: this one, or one that it has waited for."""
    return _UNIT * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def data() -> int:
    """The bytes of memory that this process may write and shares with no file: what `RLIMIT_DATA` limits. 0 if the
    system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text("ascii", "replace"), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def give_back() -> None:
    """Gives freed memory back. glibc keeps freed blocks of up to 32 MB; other C libraries have no such function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
