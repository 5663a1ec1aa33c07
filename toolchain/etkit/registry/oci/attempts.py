"""Attempts at a request or a transfer: how often, with which pauses, and what counts as progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from etbuild.errors import BuildError

ATTEMPTS = 5
BACKOFF_SECONDS = 0.5  # the pause before the second attempt; it doubles for each further one
LONGEST_WAIT_SECONDS = 60  # even if the registry asks for more
_PROGRESS = 1 << 20  # bytes; after an attempt that has transferred so many, failures are counted from 0

OnBytes = Callable[[int], None]
"""Is called with the number of transferred bytes. A negative number means that bytes are transferred again."""


@dataclass(frozen=True)
class Work:
    """How to transfer.

    Attributes:
        jobs: The number of files at the same time.
        expected: Is called once with the bytes of all files.
        on_bytes: Is called with the bytes of each step.
    """

    jobs: int
    expected: OnBytes
    on_bytes: OnBytes


class Broken(Exception):
    """A transfer was broken off. It can go on."""


class Count:
    """The bytes of a transfer that are done. `on_bytes` is called with each difference."""

    def __init__(self, on_bytes: OnBytes = lambda _: None) -> None:
        self.done = 0
        self._on_bytes = on_bytes

    def reach(self, done: int) -> None:
        """Sets the number, and reports the difference."""
        self._on_bytes(done - self.done)
        self.done = done


def pause(stop: threading.Event, failures: int, asked: float = 0) -> bool:
    """Waits after a failure, longer each time, or as long as the registry asks. Returns whether `stop` ended it."""
    return stop.wait(min(max(asked, BACKOFF_SECONDS * 2 ** (failures - 1)), LONGEST_WAIT_SECONDS))


Attempt = AbstractContextManager[None]
"""One attempt of a transfer: a context that suppresses `Broken`."""


@contextmanager
def _attempt(stop: threading.Event, broken: list[Broken]) -> Iterator[None]:
    try:
        yield
    except Broken as error:
        if stop.is_set():
            raise
        broken.append(error)


def attempts(stop: threading.Event, count: Count, failed: str, hint: str | None = None) -> Iterator[Attempt]:
    """Attempts at a transfer until one succeeds.

    Args:
        stop: Ends the pauses.
        count: The bytes that are done.
        failed: What cannot be done, for the error.
        hint: What to do then.

    Raises:
        BuildError: Some attempts in a row have failed, and none of them transferred a megabyte.
    """
    failures, before = 0, 0
    while True:
        broken: list[Broken] = []
        yield _attempt(stop, broken)
        if not broken:
            return
        failures = 1 if count.done >= before + _PROGRESS else failures + 1
        before = max(before, count.done)
        if failures >= ATTEMPTS:
            raise BuildError.of(f"{failed}: {broken[0]}", hint) from broken[0]
        pause(stop, failures)
