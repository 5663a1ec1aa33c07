"""Lets a warm process of this user run a build, and leaves one behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etbuild.processes.build_status import GRACE_SECONDS
from etbuild.surroundings import environment as surroundings
from etkit.warm import messages, place

OFF = "ETBUILD_NO_SERVER"
_SECONDS = 5.0  # that a warm process has to fork; else the build starts as if there were none
_MOST = 2  # warm processes of a user
_PEER = struct.Struct("3i")


class WarmBuild:
    """A build that a warm process has forked. Has what the watching process needs of `subprocess.Popen`.

    Attributes:
        pid: The number of its process.
        returncode: How it ended, as `Popen.returncode`. None while it runs.
    """

    def __init__(self, channel: socket.socket, pid: int, process: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._channel = channel
        self._process = process
        # The process that watches waits for this signal: then the end of this build wakes it as that of a child would.
        fcntl.fcntl(channel, fcntl.F_SETSIG, signal.SIGCHLD)
        fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(channel, fcntl.F_SETFL, fcntl.fcntl(channel, fcntl.F_GETFL) | os.O_ASYNC)

    def poll(self) -> int | None:
        """How the build ended; None while it runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                self.wait()
        return self.returncode

    def wait(self) -> int:
        """Waits until the build has ended. Returns how it ended."""
        if self.returncode is None:
            events = select.poll()
            for descriptor in (self._channel.fileno(), self._process):
                events.register(descriptor, select.POLLIN)
            events.poll()
            self._channel.settimeout(_SECONDS)
            try:
                self.returncode = messages.receive(self._channel)[0]["code"]
            except (EOFError, OSError):  # the warm process was killed or stopped
                self.returncode = self._ended_alone()
            self._channel.close()
            os.close(self._process)
        return self.returncode

    def _ended_alone(self) -> int:
        """Waits until the build has ended, which has got SIGTERM if its warm process was killed."""
        events = select.poll()
        events.register(self._process, select.POLLIN)
        if not events.poll(GRACE_SECONDS * 1000):
            self.kill()
            events.poll()
        return -signal.SIGTERM

    def terminate(self) -> None:
        """Asks the build to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the build at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)


def start(arguments: Sequence[str], variables: Mapping[str, str], descriptors: Sequence[int]) -> WarmBuild | None:
    """Lets a warm process run a command.

    Args:
        arguments: The arguments of the driver.
        variables: The environment of the command.
        descriptors: The slate, and what the watching process hands over.

    Returns:
        The running command. None: there is no warm process that fits, so the caller starts one without.
    """
    found = _wanted(variables)
    if found is None or not found.exists():
        return None
    with contextlib.ExitStack() as unused:
        channel = unused.enter_context(socket.socket(socket.AF_UNIX))
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        unused.callback(os.close, here)
        try:
            channel.settimeout(_SECONDS)
            channel.connect(str(found))
            if _peer(channel) != os.geteuid():
                return None
            messages.send(channel, {"build": True})  # a stopped process would hold descriptors, and so keep pipes open
            if not messages.receive(channel)[0].get("ready"):
                return None  # it ends, since something is installed that it has not imported
            message = {"arguments": list(arguments), "variables": dict(variables)}
            messages.send(channel, message, [0, 1, 2, here, *descriptors])
            answer, processes = messages.receive(channel)
        except ConnectionRefusedError:  # it was killed
            found.unlink(missing_ok=True)
            return None
        except (EOFError, OSError):
            return None
        if not processes:
            return None
        channel.settimeout(None)
        return WarmBuild(channel.dup(), answer["pid"], processes[0])


def leave(variables: Mapping[str, str]) -> None:
    """Leaves a warm process behind for the next build, if there is none.

    Args:
        variables: The environment of the builds.
    """
    found = _wanted(variables)
    if found is None or found.exists():
        return
    for other in place.sockets()[: 1 - _MOST]:  # they take memory
        ask(other, {"stop": True})
    nothing = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        process = subprocess.Popen(
            surroundings.command([f"{place.SERVE}{found}"]),
            env=dict(variables),
            cwd="/",
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )
        process.returncode = 0  # nobody waits for it


def ask(path: Path, message: dict[str, object]) -> dict[str, Any] | None:
    """Asks a warm process something else than a build.

    Args:
        path: Its socket. It is removed if nobody listens there.
        message: `{"stop": True}`: it ends when its builds are done. Empty: it tells its number and its builds.

    Returns:
        The answer; None if there is none.
    """
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(_SECONDS)
        try:
            channel.connect(str(path))
            messages.send(channel, message)
            return messages.receive(channel)[0]
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except (EOFError, OSError):
            pass
    return None


def _wanted(variables: Mapping[str, str]) -> Path | None:
    """The socket of the warm process for a build. None: the user wants none."""
    if os.environ.get("CI") or os.environ.get(OFF) or sys.platform != "linux":
        return None
    return place.socket_of(variables)


def _peer(channel: socket.socket) -> int:
    """The user of the process at the other end."""
    _, user, _ = _PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(user)
