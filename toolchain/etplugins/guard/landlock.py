"""Landlock: the kernel refuses files to a process, for the rest of its life, and to every process that it starts.

It needs no privileges. Linux has it since 5.13. From 5.19 on, files may also move between directories. Source:
`linux/landlock.h` and the kernel's page "Landlock: unprivileged access control".
"""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress

_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # equal on all processors that PyTorch runs on
_VERSION = 1
_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_READ_FILE, _READ_DIRECTORY, _REFER = 1 << 2, 1 << 3, 1 << 13
_CONNECT_TCP = 1 << 1
_WITH_REFER, _WITH_NETWORK = 2, 4  # the first versions that have these rights
OFF = "ETBUILD_NO_LANDLOCK"
"""The environment variable that turns it off."""


@functools.cache
def version() -> int:
    """The version of the kernel's Landlock; 0 if there is none, or if the user has turned it off."""
    if os.environ.get(OFF) or sys.platform != "linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION)))


def restrict(places: Iterable[str], listable: Iterable[str] = (), *, network: bool) -> None:
    """Lets this process read only below some places. Open files stay open. It may write as before.

    Does nothing if there is no Landlock. The process must have only one thread: others would not be restricted.

    Args:
        places: Files and directories, or links to them. Missing ones are left out.
        listable: Directories below which the process may also list names.
        network: Whether it may connect to others by TCP. Kernels before 6.7 do not refuse that.

    Raises:
        OSError: The kernel refuses the rules.
    """
    has = version()
    if not has:
        return
    rights = _READ_FILE | _READ_DIRECTORY | (_REFER if has >= _WITH_REFER else 0)
    no_network = _CONNECT_TCP if has >= _WITH_NETWORK and not network else 0
    handled = struct.pack("=QQ", rights, no_network)
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, handled, len(handled) if no_network else 8, 0))
    try:
        for place, right in (*((each, rights) for each in places), *((each, _READ_DIRECTORY) for each in listable)):
            with suppress(OSError, ValueError):
                _allow(ruleset, place, right)
        _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, place: str, rights: int) -> None:
    opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= _READ_FILE
        _checked(_libc.syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, opened), 0))
    finally:
        os.close(opened)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
