"""Shows on a terminal how much of a transfer is done."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from etkit.analysis.tables import size

_EVERY_SECONDS = 0.1
_WIDTH = 30


class TransferProgress:
    """A bar on standard error, if that is a terminal. Several threads may report to it.

    Args:
        word: What is done, such as `pulling`.
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self.total = self.done = 0
        self._lock, self._shown = threading.Lock(), 0.0
        self._live = sys.stderr.isatty()

    def __enter__(self) -> TransferProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def expect(self, count: int) -> None:
        """Sets the number of bytes of the whole transfer."""
        self.total = count

    def tell(self, count: int) -> None:
        """Adds bytes that are done."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if self._live and now - self._shown > _EVERY_SECONDS:
                self._shown = now
                filled = _WIDTH * self.done // max(self.total, 1)
                bar = "#" * filled + "." * (_WIDTH - filled)
                sys.stderr.write(f"\r\033[K  {self.word} [{bar}] {size(self.done)} of {size(self.total)}")
                sys.stderr.flush()
