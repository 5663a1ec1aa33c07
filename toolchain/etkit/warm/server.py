"""A warm process: it imports what builds import, waits for builds of its user, and forks for each.

It runs no code of a model and starts no thread. A fork gets the standard streams, the directory and the variables of
the process that asks. When that process is gone, its build ends. The warm process ends when it has waited for long,
when something that it has imported is installed anew, or when it is asked to.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from etbuild import plugins
from etbuild.errors import Leaving
from etbuild.files.scratch import remove_left
from etbuild.processes import handover, sandbox
from etbuild.processes.build_status import GRACE_SECONDS, Slate, work
from etbuild.processes.ending import STOPPING, Interrupts, blocked
from etkit.warm import messages, place
from etplugins.worker.forks import end_of
from etplugins.worker.warm_up import warm

IDLE_SECONDS = 600.0
_CHECK_SECONDS = 30.0  # how often it looks whether something was installed
_MESSAGE_SECONDS = 5.0  # that a client has to say what it wants

Run = Callable[[list[str]], int]


class _Stopped(Leaving):
    """A signal asks the process to end."""


@dataclass
class _Build:
    """A build that runs.

    Attributes:
        channel: The connection with the process that asked for it.
        pid: The number of the fork's process, which leads its own process group.
        slate: The status that the fork writes.
        kill_at: When the fork is killed, by the monotonic clock. None while it may go on.
    """

    channel: socket.socket
    pid: int
    slate: Slate
    kill_at: float | None = None

    def ended(self) -> bool:
        """Whether the fork has ended. Leaves it as a zombie."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the fork and to what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self, others: set[int]) -> int:
        """Ends the fork with everything that it has left, but not other builds. Returns its exit code, as `Popen`."""
        self.signal(signal.SIGKILL)  # the zombie still reserves the group's number
        _, status = os.waitpid(self.pid, 0)
        sandbox.end_orphans(others, seconds=0)
        remove_left(self.slate.left())
        self.slate.close()
        return os.waitstatus_to_exitcode(status)


def serve(run: Run, path: Path) -> int:
    """Builds for whoever connects to a socket, until nobody has for a while.

    Args:
        run: Takes the arguments of a command, runs it, and returns its exit code.
        path: The socket, which is made. Its directory is the user's own.

    Returns:
        The exit code: 0; 1 if another process serves there; 128 or more if a signal has ended it.
    """
    lock = os.open(path.with_suffix(place.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 1
    Interrupts(_Stopped).install()
    sandbox.adopt_orphans()
    server: _Server | None = None
    try:
        os.ftruncate(lock, 0)  # what a killed process has left
        os.write(lock, str(os.getpid()).encode())
        os.close(os.pidfd_open(os.getpid()))  # ends this process at once where the kernel has no such call
        began = time.time_ns()
        warm("build")
        _import_driver()
        with socket.socket(socket.AF_UNIX) as listener:
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)
            listener.bind(str(new))
            listener.listen()
            new.rename(path)  # so whoever finds it can connect, or its process has ended
            os.ftruncate(lock, 0)
            server = _Server(run, path, listener, began)
            server.serve()
        return 0
    except _Stopped as stopped:
        return 128 + int(stopped.args[0])
    finally:
        if server is not None:
            server.hide()
            server.end_all()


def _import_driver() -> None:
    """Imports the core, the plug-ins of all programs and those of the command that builds. What they import of PyTorch
    is there already: its first import needs the surroundings of `warm`."""
    of_builds = plugins.with_used([*plugins.of_all_programs(), plugins.group("verb")["build"].package, __package__])
    directories = [plugins.ROOT / "etbuild", *(plugin.directory for plugin in of_builds)]
    for file in sorted(file for each in directories for file in each.rglob("*.py") if "__" not in file.name):
        with contextlib.suppress(ImportError):  # of a library that only some programs need
            plugins.import_module(".".join(file.relative_to(plugins.ROOT).with_suffix("").parts))
    gc.collect()
    gc.freeze()


class _Server:
    """Handles connections, ends of forks and deadlines in one loop and one thread."""

    def __init__(self, run: Run, path: Path, listener: socket.socket, began: int) -> None:
        self.run = run
        self.path, self.socket = path, _state(str(path))
        self.began = began
        self.listener = listener
        self.builds: dict[int, _Build] = {}
        """The builds, by the descriptor of their connection."""
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.woken, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler it does not wake this process
        self.wakeup = wakeup
        self.poll.register(self.woken, select.POLLIN)
        self.imported = {file: _state(file) for file in _imported()}
        """The files that this process has imported, with their states."""
        self.idle_since = time.monotonic()
        self.serving = True

    def serve(self) -> None:
        """Works until it is no longer needed, or no longer fits."""
        while self.serving or self.builds:
            self._turn()
            idle = not self.builds and time.monotonic() - self.idle_since > IDLE_SECONDS
            if self.serving and (idle or not self._fits()):
                self._close()

    def _fits(self) -> bool:
        """Whether the files that this process has imported are as they were, and its socket can be found."""
        imported = (state[0] < self.began and _state(file) == state for file, state in self.imported.items())
        return self._is_found() and all(imported)

    def _is_found(self) -> bool:
        """Whether its socket is still its own: somebody may have removed the directory."""
        return _state(str(self.path)) == self.socket

    def hide(self) -> None:
        """Removes the socket, so that no build finds this process."""
        if self._is_found():
            self.path.unlink(missing_ok=True)

    def _turn(self) -> None:
        """Waits for an event, and handles it."""
        deadlines = [build.kill_at for build in self.builds.values() if build.kill_at is not None]
        seconds = max(0.0, min([_CHECK_SECONDS, *(each - time.monotonic() for each in deadlines)]))
        for descriptor, _ in self.poll.poll(seconds * 1000 + 1):
            if descriptor == self.woken:
                os.read(descriptor, 4096)
            elif descriptor in self.builds:  # whoever asked for it is gone: nobody sends anything else
                self._interrupt(self.builds[descriptor])
            else:
                self._accept()
        for descriptor, build in list(self.builds.items()):
            if build.kill_at is not None and time.monotonic() >= build.kill_at:
                build.signal(signal.SIGKILL)
            if build.ended():
                self._finish(descriptor)

    def _close(self) -> None:
        """Takes no more builds."""
        self.serving = False
        self.poll.unregister(self.listener)
        self.hide()
        self.listener.close()

    def _accept(self) -> None:
        channel, _ = self.listener.accept()
        channel.settimeout(_MESSAGE_SECONDS)
        descriptors: list[int] = []
        try:
            message, descriptors = messages.receive(channel)
            if message.get("stop") or not self._fits():
                self._close()
            elif message.get("build"):
                messages.send(channel, {"ready": True})
                message, descriptors = messages.receive(channel)
                self._start(channel, message, descriptors)
                return
            messages.send(channel, {"pid": os.getpid(), "builds": len(self.builds)})
        except (EOFError, OSError):
            pass
        except Exception:  # noqa: BLE001 - a bug of ours: the build then starts without this process
            traceback.print_exc()
        finally:
            for each in descriptors:
                os.close(each)
        channel.close()

    def _start(self, channel: socket.socket, message: dict[str, object], descriptors: list[int]) -> None:
        parent = os.getpid()
        with blocked(*STOPPING):  # a signal between the fork and its entry in `builds` would lose the fork
            pid = os.fork()
            if pid == 0:
                try:
                    self._work(parent, channel, message, descriptors)
                finally:  # a fork must not go on as a second server, whatever happens
                    os._exit(1)
            with contextlib.suppress(OSError):  # both processes do this, and the second call may fail
                os.setpgid(pid, pid)
            try:
                process = os.pidfd_open(pid)
                self.builds[channel.fileno()] = _Build(channel, pid, Slate(os.dup(descriptors[4])))
            except OSError:  # this process has no descriptor left
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
        self.poll.register(channel, select.POLLIN)
        with contextlib.suppress(OSError):  # whoever asked is gone: then the build is interrupted
            messages.send(channel, {"pid": pid}, [process])
        os.close(process)

    def _work(
        self, parent: int, channel: socket.socket, message: dict[str, object], descriptors: list[int]
    ) -> NoReturn:
        """Runs a build in the fork."""
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever watches gets a terminal's Ctrl-C, and passes it on
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        sandbox.end_with(parent)
        sandbox.adopt_orphans()
        slate = Slate(descriptors[4])
        handover.take(descriptors[5])
        for stream in range(3):
            os.dup2(descriptors[stream], stream)
        os.fchdir(descriptors[3])
        for descriptor in {*descriptors[:5], self.listener.fileno(), self.woken, self.wakeup, channel.fileno()}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for build in self.builds.values():
            build.channel.close()
        arguments, variables = message["arguments"], message["variables"]
        assert isinstance(arguments, list)
        assert isinstance(variables, dict)
        _begin(arguments, variables)
        work(slate, lambda: self.run(arguments), end_of(parent))

    def _interrupt(self, build: _Build) -> None:
        if build.kill_at is None:
            self.poll.unregister(build.channel)
            build.kill_at = time.monotonic() + GRACE_SECONDS
            build.signal(signal.SIGTERM)

    def _finish(self, descriptor: int) -> None:
        """Tells how a build has ended."""
        build = self.builds.pop(descriptor)
        code = build.end({other.pid for other in self.builds.values()})
        if build.kill_at is None:
            self.poll.unregister(build.channel)
        with contextlib.suppress(OSError):
            messages.send(build.channel, {"code": code})
        build.channel.close()
        self.idle_since = time.monotonic()

    def end_all(self) -> None:
        """Ends all builds."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        for build in self.builds.values():
            build.signal(signal.SIGTERM)
        kill_at = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < kill_at and not all(build.ended() for build in self.builds.values()):
            time.sleep(0.01)
        for descriptor in list(self.builds):
            self._finish(descriptor)


def _begin(arguments: list[str], variables: dict[str, str]) -> None:
    """Gives a fork what a new process has: its variables, streams and arguments, and no knowledge of what was installed
    when the warm process began."""
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    tempfile.tempdir = None
    sys.argv = [sys.argv[0], *arguments]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, _stream(number))
        setattr(sys, f"__{name}__", getattr(sys, name))
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        if name.startswith("etbuild.key."):
            for each in vars(module).values():
                if isinstance(each, functools._lru_cache_wrapper):
                    each.cache_clear()


def _stream(number: int) -> io.TextIOWrapper:
    """A standard stream, as Python makes it when it starts."""
    binary = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115 - it stays open
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0] or "utf-8"
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    lines = number == 2 or (number == 1 and binary.isatty())
    return io.TextIOWrapper(binary, encoding, errors, line_buffering=lines)


def _imported() -> set[str]:
    """The files that this process has imported, those that name plug-ins, and the directories in which packages and
    plug-ins are found: what is new there may provide something."""
    found = {*sys.path, *(str(plugins.ROOT / each) for each in plugins.PLACES)}
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return files | found | {str(plugin.directory / plugins.FILE) for plugin in plugins.plugins().values()}


def _state(file: str) -> tuple[int, int, int]:
    """What tells whether a file was written anew: when, its size and its inode; zeros if it is not there."""
    try:
        state = os.stat(file)  # noqa: PTH116 - there are thousands
    except OSError:
        return (0, 0, 0)
    return (state.st_ctime_ns, state.st_size, state.st_ino)
