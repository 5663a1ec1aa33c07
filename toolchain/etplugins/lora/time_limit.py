"""Ends code that may never end, such as a search for another person's regular expression."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the code within this context after some processor time, even in Python's regular expressions.

    Args:
        seconds: The processor time. The load of the machine does not matter.

    Raises:
        TimeoutError: The time is over.
    """

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TimeoutError(f"it takes more than {seconds:g} seconds")

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
