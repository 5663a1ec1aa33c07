"""Drops the log of ExecuTorch's runtime."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

from etbuild.surroundings.process_state import stream_to

_NATIVE_LOG = re.compile(rb"^\[\w+\.(?:cpp|h):\d+\] .*\n?", re.MULTILINE)
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
