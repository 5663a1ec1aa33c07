"""Runs a build in a second process, and watches it. Only the watching process reports how the build ended.

The watching process runs no user code and does not import torch. It returns an exit code only if the building process
has written that it reached its end with this code. So whatever a model does to its process is an error here: for
example `os._exit(0)`, a crash, or closing its standard streams.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from etbuild.errors import INTERRUPTED, BuildError, Elsewhere, Problem, check_current_directory
from etbuild.processes.build_status import GRACE_SECONDS, Slate, how_it_ended, in_words, work
from etbuild.processes.ending import STOPPING, blocked

_LONGEST_SLEEP_SECONDS = 1.0  # a write to the slate sends no signal, so the slate is checked this often
_WORK = {"bench": "the benchmark"}  # the work of verbs that do not build
observers: list[Callable[[str | None], None]] = []  # each is called about once a second with the stage of the process


def work_for_parent(descriptor: int, handed: int, run: Callable[[], int]) -> NoReturn:
    """Runs a command in a process that `supervise` started.

    Args:
        descriptor: The descriptor of the slate.
        handed: The descriptor of the data that the other process hands over.
        run: Runs the command, and returns its exit code.
    """
    from etbuild.processes import handover, sandbox

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also gets Ctrl-C from a terminal, and passes it on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    slate = Slate(descriptor)
    os.close(descriptor)
    handover.take(handed)
    sandbox.end_with(slate.pid())
    work(slate, run)


@dataclass
class _Watched:
    """A watched process, and the status that it writes."""

    process: Process
    slate: Slate
    kill_at: float | None = None  # by the monotonic clock; None while it may continue
    interrupted: bool = False  # a signal has asked the watching process to end
    late: bool = False  # it took longer than the limit
    stage: str | None = None  # the stage of the process when it was asked to end

    def end(self) -> None:
        """Asks the process to end, and sets the time when it is killed otherwise."""
        if self.kill_at is None:
            self.stage = self.slate.stage()
            self.kill_at = time.monotonic() + GRACE_SECONDS
            self.process.terminate()


class Process(Protocol):
    """A process that runs a command: one of `subprocess.Popen`, or one that another process has forked."""

    pid: int
    returncode: Any  # as that of `Popen`

    def poll(self) -> int | None:
        """How it ended; None while it runs."""

    def wait(self) -> int:
        """Waits until it has ended."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it at once."""


class Starter(Protocol):
    """What lets another process of this user run a command, and leaves such a process behind."""

    def start(
        self, arguments: Sequence[str], variables: Mapping[str, str], descriptors: Sequence[int]
    ) -> Process | None:
        """Starts a command with these variables. The descriptors are the slate and what is handed over. None: there is
        no process that can run it."""

    def leave(self, variables: Mapping[str, str]) -> None:
        """Leaves a process behind that can run commands with these variables, if there is none."""


def supervise(option: str, arguments: list[str], limit: float | None, warm: bool) -> NoReturn:
    """Runs this process's command in a new process with fixed surroundings, and watches it.

    Args:
        option: The option that passes descriptors to the new process: of the slate, and of the data to hand over.
            `{},{}` in it stands for them.
        arguments: The arguments of the command.
        limit: The time limit in seconds; None for no limit.
        warm: Whether a process that an earlier build left behind may run the command.

    Raises:
        Elsewhere: The new process has reached its end. This is the usual case.
        InputError: The new process would not find PyTorch, or the current directory was removed.
        BuildError: The new process ended before the command did, or took too long.
        KeyboardInterrupt: A signal has ended the command. The new process does not print this.
    """
    import subprocess

    from etbuild import plugins
    from etbuild.files.scratch import remove_left
    from etbuild.processes import handover, sandbox
    from etbuild.surroundings import environment

    check_current_directory()
    environment.check_packages()
    sys.stdout.flush()
    sys.stderr.flush()
    slate = Slate.new()
    descriptors = [slate.descriptor, handover.give()]
    command = environment.command([option.format(*descriptors), *arguments])
    variables = environment.environment()
    starter: Starter | None = plugins.load("starter", "warm") if warm and "warm" in plugins.group("starter") else None
    sandbox.adopt_orphans()
    with blocked(*STOPPING, signal.SIGCHLD):  # here they wait for `_watch`, and in the new process for its handlers
        process = starter.start(arguments, variables, descriptors) if starter is not None else None
        process = process or subprocess.Popen(command, env=variables, pass_fds=descriptors)
        watched = _Watched(process, slate)
        try:
            _watch(watched, limit)
        finally:
            process.kill()
            process.wait()
            sandbox.end_orphans()
            remove_left(slate.left())
    code = slate.code(process.pid)
    if code == 0 and starter is not None:
        starter.leave(variables)
    if code == 0 or (code not in (None, INTERRUPTED) and not watched.late):
        raise Elsewhere(code)
    if watched.interrupted or (code == INTERRUPTED and not watched.late):
        raise KeyboardInterrupt
    raise BuildError([_why(watched, limit, _WORK.get(arguments[0], "the build"))])


def _watch(watched: _Watched, limit: float | None) -> None:
    """Waits until the process has ended or must be killed."""
    stopping = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]  # `nohup` ignores SIGHUP
    late_at = None if limit is None else time.monotonic() + limit
    while watched.process.poll() is None:
        now = time.monotonic()
        for tell in observers:
            tell(watched.slate.stage())
        if watched.kill_at is not None and now >= watched.kill_at:
            return
        if late_at is not None and now >= late_at and watched.kill_at is None:
            watched.late = True
            watched.end()
        if watched.kill_at is None and watched.slate.code(watched.process.pid) is not None:
            watched.kill_at = now + GRACE_SECONDS
        moments = [moment for moment in (watched.kill_at, late_at) if moment is not None and moment > now]
        seconds = min([moment - now for moment in moments] + [_LONGEST_SLEEP_SECONDS])
        received = signal.sigtimedwait([*stopping, signal.SIGCHLD], seconds)
        if received is not None and received.si_signo in stopping:
            watched.interrupted = True
            watched.end()


def _why(watched: _Watched, limit: float | None, what: str) -> Problem:
    """The reason why a command did not reach its end."""
    stage = watched.stage or watched.slate.stage()
    if watched.late:
        return Problem(
            f"{what} took longer than {limit:g} s, the limit of `--timeout`, and was stopped{in_words(stage)}"
        )
    return how_it_ended(what, watched.process.returncode, stage)
