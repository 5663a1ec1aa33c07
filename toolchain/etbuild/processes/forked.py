"""Work in child processes that start as copies of this one: with everything imported, and nothing shared afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from etbuild.errors import BuildError, EtbuildError
from etbuild.processes import sandbox
from etbuild.processes.build_status import GRACE_SECONDS, how_it_ended, out_of_memory
from etbuild.processes.process_state import undone

_LOOK_SECONDS = 0.5  # a process that a dead child has left behind may hold its end of the pipe open


class _Ended(BaseException):
    """This child is no longer wanted."""


class ChildFailed(Exception):
    """A bug in a child process, with its traceback."""


def run(tasks: Mapping[str, Callable[[], Any]], at_once: int) -> dict[str, Any]:
    """Runs each task in a child process of its own, and returns when all of them are done.

    The first that fails ends the others. A child has one thread, the one that calls this: no other may hold a lock that
    a task needs.

    Args:
        tasks: By a name for messages, such as `lowering decode`.
        at_once: How many run at the same time.

    Returns:
        What they returned, by name. It has to be something that can be pickled.

    Raises:
        EtbuildError: That of a task.
        BuildError: A child was killed.
        ChildFailed: A task raised anything else.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(tasks.items())
    running: dict[Connection, tuple[str, BaseProcess]] = {}
    results = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, task = waiting.pop(0)
                result, write_end = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(name, task, write_end, os.getpid()))
                process.start()
                write_end.close()
                running[result] = (name, process)
            ready = wait(list(running), _LOOK_SECONDS)
            for ended, (name, child) in list(running.items()):
                if ended in ready or child.exitcode is not None:
                    results[name] = _finish(ended, name, child)
                    del running[ended]
        return results
    finally:
        _end([child for _, child in running.values()])


def _end(children: list[BaseProcess]) -> None:
    for child in children:
        child.terminate()
    until = time.monotonic() + GRACE_SECONDS
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
        child.kill()
        child.join()


def _stop(number: int, frame: object) -> None:
    raise _Ended


def _run(name: str, task: Callable[[], Any], result: Connection, parent: int) -> None:
    """The child: sends what the task returns, or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal's Ctrl-C the parent hears too
    signal.signal(signal.SIGTERM, _stop)
    sandbox.end_with(parent)
    try:
        with undone():
            value = task()
        result.send((value, None))
    except EtbuildError as error:
        result.send((None, error))
    except MemoryError:
        result.send((None, BuildError([out_of_memory(name)])))
    except _Ended:
        os._exit(128 + signal.SIGTERM)
    except BaseException:  # noqa: BLE001 - whatever it is, the parent has to hear of it
        result.send((None, ChildFailed(traceback.format_exc())))


def _finish(result: Connection, name: str, process: BaseProcess) -> Any:
    try:
        if not result.poll():  # it has ended, and its end of the pipe is open
            raise EOFError
        value, error = result.recv()
    except EOFError:
        process.join()
        raise BuildError([how_it_ended(name, process.exitcode or 0)]) from None
    process.join()
    if error is not None:
        raise error
    return value
