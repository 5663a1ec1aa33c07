"""Shows on a terminal how much of a transfer is done."""

from __future__ import annotations

import sys
from types import TracebackType


class TransferProgress:
    """A bar on standard error, if that is a terminal. Several threads may report to it. It begins with a word such as
    `pulling`."""

    def __init__(self, word: str) -> None:
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress

            columns = "  {task.description}", BarColumn(), DownloadColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(word)

    def __enter__(self) -> TransferProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def expect(self, count: int) -> None:
        """Sets the number of bytes of the whole transfer."""
        if self._bar:
            self._bar.update(self._task, total=count)

    def tell(self, count: int) -> None:
        """Adds bytes that are done."""
        if self._bar:
            self._bar.advance(self._task, count)
