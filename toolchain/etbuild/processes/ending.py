"""How a process ends: after a signal, or when its work is done."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from etbuild.errors import INTERRUPTED

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals with which users and systems ask a process to end."""

_AGAIN_SECONDS = 0.01  # by then, the code that dropped the error has usually returned
_PATIENCE_SECONDS = 1.0  # a signal to all processes, and the parent's after it, come within this time


class Interrupts:
    """Makes signals raise an error in the main thread, so that this process can clean up before it ends.

    If a destructor, a callback of a library, or an exit handler raises an error, Python prints it and goes on. An error
    of this class is not lost there: nothing is printed, and a timer soon raises the error again. If a second signal
    comes within these microseconds, the watching process ends this one after a while.

    Args:
        error: The type of the error. Its argument is the number of the first signal.

    Attributes:
        received: The received signals.
        over: Whether only exit handlers are left to run. Signals do not interrupt them. If they hang, a second signal
            ends the process, unless it follows the first at once. Python handles no signal between the end of a call
            and an assignment to this attribute.
    """

    def __init__(self, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.received: list[int] = []
        self.over = False
        self._error = error
        self._late: float | None = None  # the time of the first signal after the work was done
        self._other_hook = sys.unraisablehook

    def install(self, numbers: Sequence[int] = STOPPING) -> None:
        """Handles these signals from now on, and those that waited, except signals that this process ignores.

        The main thread must call this, in a place where the error may be raised.
        """
        _end_forks_as_elsewhere()
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup`, for example, ignores SIGHUP
                signal.signal(number, self._raise)
        sys.unraisablehook = self._hook
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.over:
            self._end_if_it_hangs()
            return
        if number != signal.SIGALRM:
            self.received.append(number)
        raise self._error(self.received[0])

    def _hook(self, dropped: UnraisableHookArgs) -> None:
        if not self.received or dropped.exc_type is not self._error:
            self._other_hook(dropped)
            return
        signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

    def _end_if_it_hangs(self) -> None:
        now = time.monotonic()
        self._late = self._late or now
        if now - self._late > _PATIENCE_SECONDS:
            os._exit(INTERRUPTED)


@functools.cache
def _end_forks_as_elsewhere() -> None:
    """Lets a signal end processes that code of others forks, as usual. If there is a handler, Python itself loses a
    signal that comes during a fork: then a pool that waits for the process waits forever."""
    before: dict[int, set[int | signal.Signals]] = {}  # by thread

    def block() -> None:
        before[threading.get_ident()] = set(signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING))

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.pop(threading.get_ident()))

    def unblock_in_child() -> None:
        for number in STOPPING:
            if isinstance(getattr(signal.getsignal(number), "__self__", None), Interrupts):
                signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=unblock_in_child)


@contextlib.contextmanager
def blocked(*numbers: int) -> Iterator[None]:
    """Makes signals wait within this context. In processes that start meanwhile, they wait until they are unblocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # handles signals that have arrived, and may raise an error
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_process(code: int, last: Callable[[], None] = lambda: None) -> NoReturn:
    """Ends this process.

    Runs exit handlers, such as those that remove temporary directories, and flushes what they print. Does not wait for
    threads that a model has left behind.

    Args:
        code: The exit code.
        last: Is called when everything else is done.
    """
    for step in (atexit._run_exitfuncs, flush, last):
        with contextlib.suppress(BaseException):
            step()
    os._exit(code)


def flush() -> None:
    """Writes the buffered text of the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a model has replaced or closed it
            stream.flush()
