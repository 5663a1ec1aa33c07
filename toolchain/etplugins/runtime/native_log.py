"""Drops the log of ExecuTorch's runtime, or finds in it why a call failed."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

from etbuild.exception_text import last_line
from etbuild.surroundings.process_state import stream_to

_NATIVE_LOG = re.compile(rb"^\[\w+\.(?:cpp|h):\d+\] .*\n?", re.MULTILINE)
_FAILED = re.compile(r"\[method\.cpp:\d+\] \w+ failed at instruction \d+:\d+ in operator (\S+): 0x\w+")
_OF_KERNEL = re.compile(r"\[(?!method|cpuinfo)\w+\.(?:cpp|h):\d+\] (.*)")
_redirected = threading.Lock()
"""Is held while standard error goes elsewhere: two threads would restore it in the wrong order."""


@contextlib.contextmanager
def native_log_off() -> Iterator[None]:
    """Drops the log of native code, such as `[cpuinfo_utils.cpp:71] ...`. Prints other lines to standard error
    afterwards, or all lines after an exception."""
    with _redirected, tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        failed = True
        try:
            with stream_to(2, log.fileno()):
                yield
            failed = False
        finally:
            log.seek(0)
            text = log.read()
            sys.stderr.write((text if failed else _NATIVE_LOG.sub(b"", text)).decode(errors="replace"))


def cause(written: bytes) -> str | None:
    """Why a call failed: the operator that failed last, and what its kernel said first.

    Args:
        written: The log of the runtime.

    Returns:
        For example "aten::index.Tensor_out: Index 10 out of range for tensor with size 10 at dimension 0"; the last
        line if no operator failed; None without a line.
    """
    lines = written.decode("utf-8", "replace").splitlines()
    for number in range(len(lines) - 1, -1, -1):
        if failed := _FAILED.match(lines[number]):
            said = itertools.takewhile(bool, map(_OF_KERNEL.match, reversed(lines[:number])))
            found = [each[1] for each in said if each is not None]
            return f"{failed[1]}: {found[-1]}" if found else f"`{failed[1]}` failed"
    return last_line(written)
