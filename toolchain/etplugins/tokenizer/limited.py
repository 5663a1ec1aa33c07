"""Runs other people's code on other people's files, such as tokenizers and templates, in a child process with limits:
it may crash, take all memory, or never end."""

from __future__ import annotations

import contextlib
import faulthandler
import resource
import signal
import tempfile
from collections.abc import Callable, Generator
from functools import partial
from types import SimpleNamespace
from typing import Any

from etbuild.errors import BuildError, InputError
from etbuild.exception_text import last_line
from etbuild.foreign_errors import wrap_library_errors
from etbuild.processes import forked
from etbuild.processes.build_status import how_it_ended
from etbuild.surroundings import memory
from etbuild.surroundings.process_state import stream_to

SECONDS = 60.0
"""The processor time for a call. Reading the largest tokenizers takes ten seconds."""
BYTES = 2 << 30
"""The memory for all calls. The largest tokenizers take half of it."""
_NO_MEMORY = (b"memory allocation of", b"bad_alloc")  # the last messages of Rust and C++


class Limited:
    """An object in its own child process, whose methods this process calls. Use it in a `with` statement.

    Args:
        what: The failure if the object cannot be made, for messages: "tokenizer.json: the tokenizer cannot be read".
        make: Makes the object, in the child. Output of the object and its methods is dropped.

    Raises:
        InputError: Making the object raised an exception, or took too much memory or time.
        BuildError: The child was killed.
    """

    def __init__(self, what: str, make: Callable[[], Any]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._child = forked.Beside(what, partial(_answers, what, make, self._log.fileno()))
        self._result(what, SECONDS)

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def call(self, what: str, method: str, *arguments: object, seconds: float = SECONDS) -> Any:
        """Calls a method of the object.

        Args:
            what: The failure if the method fails, for messages. Errors are those of the class.
            method: The name of the method.
            arguments: Its arguments.
            seconds: The processor time that it may take.
        """
        self._child.give((what, method, arguments, seconds))
        return self._result(what, seconds)

    def end(self) -> None:
        """Ends the child."""
        self._child.end()
        self._log.close()

    def _result(self, what: str, seconds: float) -> Any:
        try:
            return self._child.result()
        except BaseException as error:
            code = self._child.exit_code
            self._log.seek(0)
            written = self._log.read()
            self.end()
            if not isinstance(error, BuildError) or not code:
                raise
            if code == -signal.SIGPROF:
                raise InputError.of(f"{what}: it takes more than {seconds:g} seconds") from None
            if any(words in written for words in _NO_MEMORY):
                raise _too_much_memory(what) from None
            raise BuildError.of(f"{what}: {how_it_ended('its process', code).message}", last_line(written)) from None


def result(what: str, work: Callable[[], Any]) -> Any:
    """The result of one piece of work in its own child process. Arguments and errors are those of `Limited`."""
    with Limited(what, lambda: SimpleNamespace(work=work)) as child:
        return child.call(what, "work")


def _answers(what: str, make: Callable[[], Any], log: int) -> Generator[Any, Any, None]:
    """Makes the object, and answers calls of its methods."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = memory.data() + BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.disable()  # the parent reports a crash
    with stream_to(1, log), stream_to(2, log):
        with _limits(what, SECONDS):
            made = make()
        answer = None
        while True:
            what, method, arguments, seconds = yield answer
            with _limits(what, seconds):
                answer = getattr(made, method)(*arguments)


@contextlib.contextmanager
def _limits(what: str, seconds: float) -> Generator[None, None, None]:
    """Ends this process, even in native code, if the context takes more processor time. Converts errors."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with wrap_library_errors(InputError, None, what):
            try:
                yield
            except MemoryError:
                raise _too_much_memory(what) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_much_memory(what: str) -> InputError:
    return InputError.of(f"{what}: it takes more than {BYTES / 1e9:.2g} GB of memory")
