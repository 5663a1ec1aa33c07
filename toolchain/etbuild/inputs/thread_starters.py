"""Remembers which line of the declared sources started a thread: the stack of a thread does not say it."""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.patching import replaced

# Python 3.13 adds the joinable ones.
_STARTERS = [
    (owner, name)
    for owner, names in (
        (_thread, ("start_new_thread", "start_new", "start_joinable_thread")),
        (threading, ("_start_new_thread", "_start_joinable_thread")),
    )
    for name in names
    if hasattr(owner, name)
]


class _OfThread(threading.local):
    """What is known of the current thread.

    Attributes:
        starter: What `starter_of` returned when another thread started this one.
    """

    starter: Any = None


_current = _OfThread()


def starter() -> Any:
    """What `starter_of` returned when the current thread was started; None if nothing was remembered."""
    return _current.starter


@contextlib.contextmanager
def starters_remembered(starter_of: Callable[[], Any], quiet: type[BaseException]) -> Iterator[None]:
    """Remembers the starter of each thread that is started inside.

    Args:
        starter_of: Called in the thread that starts another.
        quiet: An exception that a thread ends with in silence.
    """

    def remembering(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(function: Callable[..., Any], *rest: Any, **options: Any) -> Any:
            known = starter_of()
            if not callable(function):
                return start(function, *rest, **options)  # which says what is wrong

            def run(*arguments: Any, **keywords: Any) -> None:
                _current.starter = known
                with contextlib.suppress(quiet):
                    function(*arguments, **keywords)

            return start(run, *rest, **options)

        return started

    hook = threading.excepthook

    def excepthook(arguments: Any, /) -> None:
        if not (arguments.exc_type is not None and issubclass(arguments.exc_type, quiet)):
            hook(arguments)

    with contextlib.ExitStack() as stack:
        for owner, name in _STARTERS:
            stack.enter_context(replaced(owner, name, remembering(getattr(owner, name))))
        stack.enter_context(replaced(threading, "excepthook", excepthook))
        yield
