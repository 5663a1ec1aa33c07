"""Messages of libraries are hidden for a while, and shown again afterwards, also with several threads."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from etbuild.surroundings.library_output import library_messages_off


@pytest.fixture
def shown() -> Iterator[list[str]]:
    """The messages that are shown."""
    texts: list[str] = []
    handler = logging.StreamHandler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tests").addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        yield texts
    logging.getLogger("tests").removeHandler(handler)


def say(who: str) -> None:
    logging.getLogger("tests").error("%s logs", who)
    warnings.warn(f"{who} warns", stacklevel=1)


def run(function: Callable[..., None], *arguments: str) -> None:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def test_uses_that_overlap_leave_the_settings_as_they_were(shown: list[str]) -> None:
    """Two threads can end in the order in which they began."""
    filters, handle = [*warnings.filters], logging.Handler.handle
    first, second = ExitStack(), ExitStack()
    first.enter_context(library_messages_off())
    second.enter_context(library_messages_off(["models/net.py"]))
    first.close()
    say("inside")
    second.close()
    say("outside")
    assert shown == ["outside logs", "outside warns"]
    assert warnings.filters == filters
    assert logging.Handler.handle is handle


def test_a_thread_of_the_users_program_keeps_its_messages(shown: list[str]) -> None:
    began, hidden = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        hidden.wait()
        say("user")
        with library_messages_off():
            say("user inside")

    user = threading.Thread(target=work)
    user.start()
    began.wait()
    with library_messages_off():
        hidden.set()
        user.join()
        say("library")
        for _ in range(10):  # some of them have the identifier of the user's thread, which has ended
            run(say, "thread of a library")
    assert shown == ["user logs", "user warns"]


def test_a_hidden_warning_raises_nothing_and_that_of_a_source_is_shown(shown: list[str]) -> None:
    warnings.simplefilter("error")
    with library_messages_off(["tests/unit/other.py"]):
        say("library")
    assert shown == []
    with library_messages_off([f"{__name__.replace('.', '/')}.py"]):
        say("source")
    assert shown == ["source warns"]
