"""The memory of this process: measures it, and gives freed memory back."""

import contextlib
import ctypes
import re
import resource
import sys
from pathlib import Path

_UNIT = 1 if sys.platform == "darwin" else 1024  # of `ru_maxrss`, in bytes


def peak() -> int:
    """The largest memory of a process so far, in bytes: this one, or one that it has waited for."""
    return _UNIT * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def data() -> int:
    """The bytes of writable memory of this process without files, as `RLIMIT_DATA` counts them. 0 if the system does
    not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text("ascii", "replace"), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def give_back() -> None:
    """Gives freed memory back. glibc keeps freed blocks of up to 32 MB; other C libraries have no such function."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
