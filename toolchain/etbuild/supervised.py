"""A process that builds, and the one that watches it and alone says how the build ended.

The watching process runs no user's code and imports no torch. It returns an exit code only if the building process has
said that it reached the end with this code: whatever a model does to its process, such as `os._exit(0)`, a crash, or
closing its standard streams, is an error here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from etbuild.errors import BuildError, Problem

if TYPE_CHECKING:
    from subprocess import Popen

GRACE_SECONDS = 5.0
"""How long a process may take to remove half-made files after SIGTERM, or to end after its work is done."""

_LONGEST_SLEEP_SECONDS = 1.0  # a word that the work is done wakes nobody
_SLATE_BYTES = 4096
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Elsewhere(BaseException):
    """The command was run to its end by another process, with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Slate:
    """What a process says of itself while it works: memory that it shares with the one that watches it.

    Args:
        descriptor: Of the shared memory.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> Slate:
        """One of this process, which watches another that has not said anything yet."""
        slate = cls(os.memfd_create("etbuild"))
        slate.write()
        return slate

    def write(self, stage: str | None = None, code: int | None = None) -> None:
        """Says which stage this process is in, or the exit code that it has reached the end with."""
        said = json.dumps({"pid": os.getpid(), "stage": stage and stage[:500], "code": code})
        with contextlib.suppress(OSError):  # a model may close what is not its own: then no end is said
            os.pwrite(self.descriptor, said.encode().ljust(_SLATE_BYTES), 0)

    def stage(self) -> str | None:
        """The stage that was written last."""
        stage = self._read().get("stage")
        return stage if isinstance(stage, str) else None

    def pid(self) -> int:
        """The process that wrote last."""
        pid = self._read().get("pid")
        return pid if isinstance(pid, int) else 0

    def code(self, pid: int) -> int | None:
        """The exit code that this process, and no copy of it, has reached the end with. None: it has not."""
        said = self._read()
        code = said.get("code")
        return code if said.get("pid") == pid and isinstance(code, int) else None

    def close(self) -> None:
        """Ends its use here."""
        os.close(self.descriptor)

    def _read(self) -> dict[str, object]:
        try:
            said = json.loads(os.pread(self.descriptor, _SLATE_BYTES, 0))
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}


_slate: Slate | None = None  # of this process, if another one watches it


@contextlib.contextmanager
def in_stage(name: str) -> Iterator[None]:
    """Says which stage this process is in, as long as the context lasts."""
    if _slate is not None:
        _slate.write(name)
    yield
    if _slate is not None:
        _slate.write()


def work_for_parent(descriptor: int, run: Callable[[], int]) -> NoReturn:
    """Runs a command in a process that `supervise` started.

    Args:
        descriptor: Of the slate.
        run: Runs the command, and returns its exit code.
    """
    from etbuild import isolation

    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal's Ctrl-C the parent hears too, and passes it on
    slate = Slate(descriptor)
    isolation.end_with(slate.pid())
    work(slate, run)


def work(slate: Slate, run: Callable[[], int], end: Callable[[], None] = lambda: None) -> NoReturn:
    """Runs a command, says on the slate how it ended, and ends this process.

    Args:
        slate: Shared with the process that watches this one.
        run: Runs the command, and returns its exit code.
        end: Called when nothing is left to do.
    """
    global _slate
    _slate, worker, code = slate, os.getpid(), 1
    try:
        code = run()
    except SystemExit as end:  # of the parser of the command line
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # a bug of ours keeps its traceback
        traceback.print_exc()
    finally:
        if os.getpid() == worker:
            slate.write(code=code)
            # Threads that a model has left are not waited for. Handlers are run, such as those that remove temporary
            # directories; what they print goes out too.
            for last in (atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush, end):
                with contextlib.suppress(BaseException):
                    last()
        os._exit(code)


@dataclass
class _Watched:
    """A process that is being watched.

    Attributes:
        process: The process.
        slate: What it says of itself.
        kill_at: When its patience ends, by the monotonic clock. None: it may go on.
        interrupted: A signal has asked this process to end.
        late: It took longer than it was allowed to, in this stage.
    """

    process: Popen[bytes]
    slate: Slate
    kill_at: float | None = None
    interrupted: bool = False
    late: bool = False
    stage: str | None = None

    def end(self) -> None:
        """Asks it to end, and has it killed soon if it does not."""
        if self.kill_at is None:
            self.stage = self.slate.stage()
            self.kill_at = time.monotonic() + GRACE_SECONDS
            self.process.terminate()


def supervise(option: str, arguments: list[str], limit: float | None) -> NoReturn:
    """Runs this process's command in a new one, in settled surroundings, and watches it.

    Args:
        option: Hands the slate's descriptor to the new process, where `{}` stands for it.
        arguments: Of the command.
        limit: How many seconds it may take.

    Raises:
        Elsewhere: The new process has reached the end.
        InputError: It would not find PyTorch.
        BuildError: The process ended before the command did, or took too long.
    """
    import subprocess

    from etbuild import isolation, settled

    settled.check_packages()
    sys.stdout.flush()
    sys.stderr.flush()
    slate = Slate.new()
    command = settled.command([option.format(slate.descriptor), *arguments])
    isolation.adopt_orphans()
    with _Signals() as signals:
        process = subprocess.Popen(command, env=settled.environment(), pass_fds=[slate.descriptor])
        watched = _Watched(process, slate)
        try:
            _watch(watched, signals, limit)
        finally:
            process.kill()
            process.wait()
            isolation.end_orphans()
    code = slate.code(process.pid)
    if watched.late or (code is None and not watched.interrupted):
        raise BuildError([_why(watched, limit)])
    raise Elsewhere(128 + signal.SIGINT if code is None else code)


def _watch(watched: _Watched, signals: _Signals, limit: float | None) -> None:
    """Waits until the process has ended, or has to be killed."""
    late_at = None if limit is None else time.monotonic() + limit
    while watched.process.poll() is None:
        now = time.monotonic()
        if watched.kill_at is not None and now >= watched.kill_at:
            return
        if signals.received and not watched.interrupted:
            watched.interrupted = True
            watched.end()
        if late_at is not None and now >= late_at and watched.kill_at is None:
            watched.late = True
            watched.end()
        if watched.kill_at is None and watched.slate.code(watched.process.pid) is not None:
            watched.kill_at = now + GRACE_SECONDS
        moments = [moment for moment in (watched.kill_at, late_at) if moment is not None and moment > now]
        signals.wait(min([moment - now for moment in moments] + [_LONGEST_SLEEP_SECONDS]))


def _why(watched: _Watched, limit: float | None) -> Problem:
    """Why a build did not reach its end."""
    stage = watched.stage or watched.slate.stage()
    if watched.late:
        return Problem(f"the build took longer than {limit:g} s, the limit of `--timeout`: it was ended{_in(stage)}")
    return how_it_ended("the build", watched.process.returncode, stage)


def how_it_ended(what: str, code: int, stage: str | None = None) -> Problem:
    """What is wrong with a process that ended before its work did.

    Args:
        what: Its work, such as `the build`.
        code: As `Popen.returncode`.
        stage: The stage that it was in.
    """
    if code < 0:
        hint = None
        if -code == signal.SIGKILL:
            hint = "a process is mostly killed by SIGKILL when the memory runs out: `--jobs 1` needs less"
        return Problem(f"{what} ended with {_signal_name(-code)}{_in(stage)}", hint=hint)
    hint = "does the model, or a library that it uses, call `os._exit`?"
    return Problem(f"{what} ended with exit code {code}{_in(stage)}, before its work was done", hint=hint)


def _in(stage: str | None) -> str:
    return f" in the stage `{stage}`" if stage else ""


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


@dataclass
class _Signals:
    """Signals that wake this process; those that ask it to end are noted.

    Attributes:
        received: Those that ask it to end.
    """

    received: list[int] = field(default_factory=list)
    _before: dict[signal.Signals, object] = field(default_factory=dict)

    def __enter__(self) -> _Signals:
        self._woken, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._woken, False)
        self._other = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in _STOPPING:
            if signal.getsignal(number) != signal.SIG_IGN:  # such as SIGHUP, of `nohup`
                self._before[number] = signal.signal(number, lambda number, frame: self.received.append(number))
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._other)
        os.close(self._woken)
        os.close(self._wakeup)

    def wait(self, seconds: float) -> None:
        """Until a signal comes, and no longer than this."""
        if select.select([self._woken], [], [], max(0.0, seconds))[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._woken, 4096):
                    pass
