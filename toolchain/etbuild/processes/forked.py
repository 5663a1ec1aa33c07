"""Runs work in child processes that start as copies of this one: they have all imports, and share nothing later."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from etbuild.errors import BuildError, EtbuildError, Leaving
from etbuild.files import digests
from etbuild.foreign_errors import foreign_error, system_error
from etbuild.processes import sandbox
from etbuild.processes.build_status import GRACE_SECONDS, how_it_ended, last_stage, out_of_memory
from etbuild.processes.ending import STOPPING, Interrupts, blocked, flush
from etbuild.surroundings.process_state import high_copy, undone

_FORK = multiprocessing.get_context("fork")
_LOOK_SECONDS = 0.5  # time between looks for dead children, whose pipes others may hold open


class _Ended(Leaving):
    """The parent has ended this child, because its result is no longer needed."""


class ChildFailed(Exception):
    """A bug in a child process. The message is the traceback."""


loaded: set[str] = set()
"""The files of modules that children of this process have imported. This process may not have imported them."""


def files_of(modules: Iterable[str]) -> set[str]:
    """The files of imported modules, by their names."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in list(modules))
    return {file for file in files if isinstance(file, str)}


def run(
    tasks: Mapping[str, Callable[[], Any]], at_once: int, meanwhile: Sequence[Callable[[], object]] = ()
) -> dict[str, Any]:
    """Runs each task in its own child process, and returns when all of them are done.

    If a task fails, the others are ended. A child has only the thread that calls this function, so other threads must
    not hold a lock that a task needs.

    Args:
        tasks: The tasks by a name for messages, such as `lowering decode`.
        at_once: The number of tasks that run at the same time.
        meanwhile: The work of this process after the first tasks have started, until one of them ends.

    Returns:
        The result of each task, by name. Results must be picklable.

    Raises:
        EtbuildError, KeyboardInterrupt: A task raised this error.
        BuildError: A child was killed, or ran out of memory.
        ChildFailed: A task raised any other exception.
    """
    waiting = list(tasks.items())
    running: dict[Connection, _Child] = {}
    results = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                with blocked(*STOPPING):  # until the child has its own handlers
                    name, task = waiting.pop(0)
                    child = _Child(name, partial(_only, name, task))
                    running[child.result] = child
            for work in meanwhile:
                if not wait(list(running), 0):
                    work()
            meanwhile = ()
            ready = wait(list(running), _LOOK_SECONDS)
            for ended, child in list(running.items()):
                if ended in ready or child.process.exitcode is not None:
                    results[child.name] = child.finish()
                    del running[ended]
        return results
    finally:
        _end(running.values())


class Beside:
    """A child process that works beside this one, in steps. It begins with the first step.

    Args:
        name: The work of the child, for messages.
        task: A generator. Each yielded value is the result of a step; `yield` returns the value given for the next
            step. The returned value is the result of the last step.

    Attributes:
        exit_code: The exit code of the child, if it has ended without a result.
    """

    def __init__(self, name: str, task: Callable[[], Generator[Any, Any, Any]]) -> None:
        self.exit_code: int | None = None
        given, self._give = _FORK.Pipe(duplex=False)
        self._child: _Child | None = None
        try:
            with given, blocked(*STOPPING):
                self._child = _Child(name, partial(_steps, name, task, given))
        except BaseException:  # a signal had to wait for the child
            self.end()
            raise

    def give(self, value: object) -> None:
        """Starts the next step of the child, with a value."""
        with suppress(BrokenPipeError):  # the child has ended: `result` says why
            self._give.send(value)

    def result(self) -> Any:
        """The result of the child's step. If the step fails, the child ends; errors are those of `run`."""
        child = self._child
        assert child is not None, "it has not ended"
        try:
            while not wait([child.result], _LOOK_SECONDS) and child.process.exitcode is None:
                pass
            return child.received()
        except BaseException:
            self.exit_code = child.process.exitcode
            self.end()
            raise

    def end(self) -> None:
        """Ends the child, if it still runs."""
        if self._child is not None:
            _end([self._child])
        self._child = None
        self._give.close()


class _Child:
    """A child process, and the source of its result. Start it while signals that stop a build are blocked."""

    def __init__(self, name: str, outcomes: Callable[[], Iterator[memoryview]]) -> None:
        self.name = name
        self.result, write_end = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_run, args=(outcomes, write_end, os.getpid()))
        self.process.start()
        write_end.close()

    def finish(self) -> Any:
        """The result of the task, after its end."""
        try:
            return self.received()
        finally:
            self.process.join()

    def received(self) -> Any:
        """The result that the process has sent; raises the error that it has sent, or that it has ended."""
        try:
            if not self.result.poll():  # the child has ended, but its end of the pipe is still open
                raise EOFError
            value, error, files, learned = self.result.recv()
        except EOFError:
            self.process.join()
            raise BuildError([how_it_ended(self.name, self.process.exitcode or 0, last_stage())]) from None
        if error is not None:
            raise error
        loaded.update(files)
        digests.learn(learned)
        return value


def _end(children: Collection[_Child]) -> None:
    processes = [child.process for child in children]
    try:
        for process in processes:
            process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
    finally:  # even if a second signal ends the wait: Python's exit handler would wait for the children without a limit
        for process in processes:
            process.kill()
            process.join()


def _run(outcomes: Callable[[], Iterator[memoryview]], result: Connection, parent: int) -> None:
    """Runs in the child, and sends the outcomes of its work."""
    # The parent also gets Ctrl-C from a terminal. Programs that the task starts do not inherit a handler.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    sandbox.end_with(parent)
    own = os.getpid()
    interrupts = Interrupts(_Ended)
    try:
        interrupts.install([signal.SIGTERM, signal.SIGHUP])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        safe = Connection(high_copy(result.fileno()), readable=False)  # code of others may close descriptors
        for outcome in outcomes():
            if os.getpid() != own:  # the task has forked
                os._exit(0)
            flush()
            safe.send_bytes(outcome)
        interrupts.over = True
        for number in (signal.SIGTERM, signal.SIGHUP):  # from here on, nothing needs cleaning up
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os._exit(0)  # `multiprocessing` would wait for threads of a model
    except _Ended:
        os._exit(128 + interrupts.received[0])


def _only(name: str, task: Callable[[], Any]) -> Iterator[memoryview]:
    def done() -> Any:
        with undone():
            return task()

    yield _outcome(name, done)


def _steps(name: str, task: Callable[[], Generator[Any, Any, Any]], given: Connection) -> Iterator[memoryview]:
    """The outcomes of steps, until the last step or a failure."""

    def done() -> Generator[Any, Any, Any]:
        with undone():
            return (yield from task())

    steps, value, goes_on = done(), None, True

    def step() -> Any:
        nonlocal goes_on
        goes_on = False
        try:
            result = steps.send(value)
        except StopIteration as end:
            return end.value
        goes_on = True
        return result

    while True:
        yield _outcome(name, step)
        if not goes_on:
            return
        value = given.recv()  # has no end of file, as the other end is also here; ends with the parent


def _outcome(name: str, task: Callable[[], Any]) -> memoryview:
    """For the parent: the result of the task, its error, the files of the modules that it has imported, and the digests
    of files that it has learned."""
    before, known = set(sys.modules), digests.known()
    try:
        value = task()
        learned = dict(digests.known().items() - known.items())
        return ForkingPickler.dumps((value, None, loaded | files_of(sys.modules.keys() - before), learned))
    except (EtbuildError, KeyboardInterrupt) as error:
        failure: BaseException = error
    except _Ended:
        raise
    except MemoryError:
        failure = BuildError([out_of_memory(name)])
    except BaseException as error:  # noqa: BLE001 - the parent has to hear of every exception
        failure = system_error(error) or foreign_error(error) or ChildFailed(traceback.format_exc())
    return ForkingPickler.dumps((None, failure, set(), {}))
