"""Remembers which line of the declared sources started a thread. The stack of the thread does not contain that line."""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.patching import replaced

# Python 3.13 adds the joinable functions.
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
    """What is known about the current thread.

    Attributes:
        starter: The result of `starter_of` when another thread started this one.
    """

    starter: Any = None


_current = _OfThread()


def starter() -> Any:
    """The result of `starter_of` when the current thread was started; None if nothing was remembered."""
    return _current.starter


@contextlib.contextmanager
def starters_remembered(starter_of: Callable[[], Any], quiet: type[BaseException]) -> Iterator[None]:
    """Remembers the starter of each thread that is started inside.

    Args:
        starter_of: Is called in the thread that starts another one.
        quiet: An exception that ends a thread without a message.
    """

    def remembering(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(function: Callable[..., Any], *rest: Any, **options: Any) -> Any:
            known = starter_of()
            if not callable(function):
                return start(function, *rest, **options)  # raises the error about it

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
